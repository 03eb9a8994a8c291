"""Pages as a browser shows them: Chromium through Playwright, and axe-core for accessibility.

`axe-playwright-python` includes axe-core, so no test needs npm or the network. The browser is
Debian's, or the one that Playwright installed.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UNFOLD = "for (const part of document.querySelectorAll('details')) part.open = true"
CUT_OFF = """
[...document.querySelectorAll("table, img, svg")].filter((each) => {
  const page = each.closest("[role=main], main, body");
  for (let part = each.parentElement; part !== page; part = part.parentElement)
    if (getComputedStyle(part).overflowX === "auto") return false;
  return each.getBoundingClientRect().right > page.getBoundingClientRect().right + 1;
}).map((each) => "cut off: " + each.outerHTML.slice(0, 80))
"""
ALL_RULES: dict[str, object] = {"resultTypes": ["violations"]}
"""Options of axe-core; comparing colours takes most of its time."""


@contextmanager
def browser() -> Iterator[object]:
    """Start a browser, or skip the test if there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        # A container's root has no sandbox, and these pages are our own.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=_chromium(playwright), args=flags)
        yield found
        found.close()


def _chromium(playwright) -> str:
    places = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    for place in (*places, playwright.chromium.executable_path):
        if place and Path(place).exists():
            return place
    pytest.skip("no Chromium found: apt-get install chromium, or playwright install chromium")


def faults(
    browser, path: Path, width: int, scheme: str, site: Path | None = None,
    *, access: dict[str, object] | None = ALL_RULES,
) -> list[str]:  # fmt: skip
    """Return the faults of a page on a screen, with everything unfolded.

    It is wider than the screen, cuts off a table or a picture, says something on the console, asks
    for more than itself (or, of a site, its files), or axe-core, with the options `access`, finds
    something that shuts people out.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page, found = context.new_page(), []
    page.on("console", lambda message: found.append(message.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    own = (site or path).as_uri()
    page.on(
        "request",
        lambda request: request.url.startswith(own) or found.append(f"asked {request.url}"),
    )
    page.goto(path.as_uri())
    page.evaluate(UNFOLD)
    wide = page.evaluate("document.documentElement.scrollWidth")
    found += [f"{wide} pixels wide"] if wide != width else []
    found += page.evaluate(CUT_OFF)
    seen = list(found)  # axe-core itself requests style sheets, which files may not do
    if access:
        checked = axe.Axe().run(page, options=access)
        seen += [checked.generate_report()] if checked.violations_count else []
    context.close()
    return seen
