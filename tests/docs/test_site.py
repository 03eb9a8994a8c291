"""The documentation site as a browser shows it, every page of it."""

from pathlib import Path

import pytest

from tests.browser import browser, faults

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The pages, built."""
    sphinx = pytest.importorskip("sphinx.cmd.build", reason="sphinx is not installed")
    out = tmp_path_factory.mktemp("site")
    assert sphinx.main(["-W", "-q", "-b", "html", str(DOCS), str(out)]) == 0
    return out


ALL = ""
"""Begins the name of every page."""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme", "access"),
    [
        (1280, "light", ALL), (390, "dark", "privacy.html"),
        pytest.param(390, "dark", ALL, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_every_page_fits_its_screen_and_shuts_nobody_out(site, width, scheme, access):
    """In the dark one page, of all that the theme has, tells whom the colours shut out."""
    pages = [
        path for path in sorted(site.rglob("*.html"))
        if path.relative_to(site).parts[0] not in ("_static", "reports")
    ]  # fmt: skip
    assert len(pages) > len([*DOCS.rglob("*.md")])
    with browser() as chromium:
        found = {
            path.name: faults(
                chromium, path, width, scheme, site, access=path.name.startswith(access)
            )
            for path in pages
        }
    assert {name: said for name, said in found.items() if said} == {}
