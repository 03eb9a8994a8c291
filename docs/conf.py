"""Sphinx's settings for the documentation site: `make docs`."""

import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parent / "reference"
sys.path.insert(0, str(REFERENCE))  # `commands` and `settings_table`

project = "dpfact-flower"
author = "the dpfact-flower authors"
copyright = f"2026, {author}"  # noqa: A001 - the name is Sphinx's
release = metadata.version("dpfact-flower")

extensions = [
    "myst_nb",  # with myst_parser
    "settings_table",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "README.md"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = "dpfact-flower"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["_static"]
html_js_files = ["scrolled.js"]
html_css_files = ["wide.css"]

nb_execution_mode = "off"  # notebooks are stored with their output: laboratory/notebooks.py
# Headings are linked to across pages, as on a forge that shows the same files.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
# The shell's blocks are indented, and need no colours.
highlight_language = "none"
copybutton_exclude = ".linenos, .gp"

smartquotes = False  # they make a dash of --option
default_role = "code"  # names in docstrings
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # an attribute is explained once, where its class is
strip_signature_backslash = True  # else the names of such attributes lose their last underscore
autodoc_typehints = "none"  # the docstrings have types, shapes and units
autodoc_member_order = "bysource"
autosummary_ignore_module_all = False
# Types are written for people: "ndarray of shape (I_n, R)" names no class called shape.
suppress_warnings = ["ref.python"]


def setup(app: Any) -> None:
    """Make the reference's pages anew; put the gallery's reports beside its page, as they are."""
    import commands  # noqa: PLC0415 - docs/reference is on the path now

    shutil.rmtree(REFERENCE / "objects", ignore_errors=True)
    commands.write_pages()
    app.connect("build-finished", _copy_reports)


def _copy_reports(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        shutil.copytree(
            Path(app.srcdir) / "reports", Path(app.outdir) / "reports", dirs_exist_ok=True
        )
