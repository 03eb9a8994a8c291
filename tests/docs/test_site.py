"""Every page of the documentation site, as a browser shows it."""

from pathlib import Path

import click
import pytest
import typer

import dpfact_flower
from dpfact_flower import cli
from tests.browser import ALL_RULES, browser, faults

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built pages."""
    sphinx = pytest.importorskip("sphinx.cmd.build", reason="sphinx is not installed")
    out = tmp_path_factory.mktemp("site")
    assert sphinx.main(["-W", "-q", "-b", "html", str(DOCS), str(out)]) == 0
    return out


MADE = ("objects", "commands")
"""Folders of generated pages. axe-core checks one page of each, and `make test` opens no other."""
COLOURS = "privacy.html"
"""The page on which `make test` checks colour contrast, because it has all elements of the
theme."""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme", "rules"),
    [
        (390, "dark", None), pytest.param(1280, "light", ALL_RULES, marks=pytest.mark.nightly),
        pytest.param(390, "dark", ALL_RULES, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_every_page_fits_its_screen_and_shuts_nobody_out(site, width, scheme, rules):
    pages = [
        path for path in sorted(site.rglob("*.html"))
        if path.relative_to(site).parts[0] not in ("_static", "reports")
    ]  # fmt: skip
    assert len(pages) > len([*DOCS.rglob("*.md")])
    seen = {path.parent.name if path.parent.name in MADE else path: path for path in pages}
    if rules is None:
        pages = [*seen.values()]
    asked = dict.fromkeys(seen.values(), rules) | {
        path: ALL_RULES for path in pages if path.name == COLOURS
    }
    with browser() as chromium:
        found = {
            path.name: faults(chromium, path, width, scheme, site, access=asked.get(path))
            for path in pages
        }
    assert {name: said for name, said in found.items() if said} == {}


def commands(command: click.Command, *words: str) -> list[tuple[str, ...]]:
    """Return a command and all commands and groups below it, as lists of words."""
    if not isinstance(command, click.Group):
        return [words]
    context = click.Context(command)
    below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [words, *(each for name, its in below for each in commands(its, *words, name))]


@pytest.mark.process
@pytest.mark.slow
def test_the_reference_has_a_page_for_every_public_name_and_every_command(site):
    objects = site / "reference" / "objects"
    for name in dpfact_flower.__all__:
        page = objects / f"dpfact_flower.{name}.html"
        assert f'id="dpfact_flower.{name}"' in page.read_text(encoding="utf-8")
    estimator = objects / f"dpfact_flower.{dpfact_flower.DPFactPhenotyper.__name__}.html"
    assert 'Phenotyper.components_"' in estimator.read_text(encoding="utf-8")
    found = commands(typer.main.get_command(cli.app), "dpfact")
    assert ("dpfact", "data", "mimic4") in found
    for words in found:
        page = site / "reference" / "commands" / f"{'-'.join(words)}.html"
        assert "Usage" in page.read_text(encoding="utf-8")
