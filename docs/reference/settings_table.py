"""Sphinx directive `settings-table`: every setting of a class with default, range and meaning."""

from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dpfact_flower import settings


class SettingsTable(SphinxDirective):
    """The table that `dpfact settings` prints, of the class that is its argument."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """Make a list table, and have Sphinx read it."""
        lines = [".. list-table::", "   :header-rows: 1", ""]
        rows = [("setting", "default", "allowed", "meaning")]
        for row in settings.describe(getattr(settings, self.arguments[0])):
            default = f"``{row.default!r}``" if row.default != "" else "none"
            allowed = row.allowed.replace("|", r"\|")
            rows.append((f"``{row.key}``", default, allowed, row.help))
        for cells in rows:
            for number, cell in enumerate(cells):
                lines.append(f"   {' ' if number else '*'} - {cell}")
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.add_directive("settings-table", SettingsTable)
    return {"parallel_read_safe": True}
