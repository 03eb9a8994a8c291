"""Reports and comparisons as a browser shows them."""

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.evaluation.comparison import replications, write_comparison
from dpfact_flower.evaluation.membership import leading_codes
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.review import write_sheet
from dpfact_flower.evaluation.run_folder import (
    BESIDE,
    Names,
    read_model,
    write_json,
    write_model,
    write_names,
    write_summary,
)
from tests.browser import browser, faults
from tests.evaluation.folders import run_folder, site_of
from tests.evaluation.summaries import MEASURED, SIMULATED

pytestmark = pytest.mark.process

CERTAINTIES = ("stable", "unconfirmed", "found")


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """A report with another run, a report in which nothing was learned, and a comparison."""
    top = tmp_path_factory.mktemp("pages")
    run, nothing = run_folder(top / "run"), run_folder(top / "nothing")
    other = run_folder(top / "other", noise=0.1)
    write_names(run, Names({3: "renal failure"}))
    factors, lists = read_model(run)
    texts = list(lists[1].descriptions)
    texts[factors[1][:, 1].argmax()] = "Meanings|Myocardial infarction"
    write_model(run, factors, [lists[0], replace(lists[1], descriptions=tuple(texts))])
    write_json(run / BESIDE, replications(run, [other]))
    measured = replace(MEASURED, fit_shared=0.0, auc=None)
    write_summary(nothing, replace(SIMULATED, rank=5, measured=measured))
    has, noise = np.arange(40)[:, None] < 20, np.random.default_rng(0).random((40, 20)) < 0.4
    site = site_of([np.where(has, leading_codes(f)[:, 0], noise) for f in factors], lists)
    return {
        "report": write_report(run),
        "nothing": write_report(nothing),
        "compare": write_comparison([run, other, nothing], top / "compare.html"),
        "review": write_sheet(run, site, 1, top / "r", patients=4).with_suffix(".html"),
    }


@pytest.fixture
def page(chromium, pages):
    """The report on a desktop screen."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    found = context.new_page()
    found.goto(pages["report"].as_uri())
    yield found
    context.close()


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("report", 390, "light"), ("nothing", 390, "dark"), ("compare", 390, "light"),
        ("review", 1280, "dark"), pytest.param("report", 1280, "dark", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_a_page_fits_its_screen_and_shuts_nobody_out(chromium, pages, name, width, scheme):
    assert faults(chromium, pages[name], width, scheme) == []


def visible(page, selector: str) -> list[str]:
    return [e.inner_text() for e in page.query_selector_all(selector) if e.is_visible()]


def test_the_first_screen_names_the_phenotypes_and_whom_they_concern(page):
    row = page.locator(".overview tbody tr").first
    assert row.bounding_box()["y"] < 900
    assert "%" in row.inner_text()
    assert row.inner_text().split()[-1] in CERTAINTIES


def test_a_table_sorts_up_and_down_by_its_numbers(page):
    header = page.get_by_role("button", name="patients", exact=True).first
    shares = "[...document.querySelectorAll('.overview td[data-v].share')].map(c => +c.dataset.v)"
    given = page.evaluate(shares)
    header.click()
    assert page.evaluate(shares) == sorted(given) != given
    header.press("Enter")
    assert page.evaluate(shares) == sorted(given, reverse=True)
    assert page.locator(".overview th[aria-sort=descending]").count() == 1


def test_a_search_leaves_the_phenotypes_that_have_the_word(page):
    page.fill("#search", "RENAL")
    (left,) = visible(page, ".card h3")
    assert left.startswith("3 · renal failure")
    assert len(visible(page, ".overview tbody tr")) == 1
    assert page.inner_text("#hits") == "1 of 5"
    page.fill("#search", page.locator("#phenotype-3 .codes b").first.inner_text())
    assert page.locator("#phenotype-3").is_visible()
    assert "heart attack" not in page.locator("#phenotype-2").text_content().lower()
    page.fill("#search", "heart attack")
    assert page.locator("#phenotype-2").is_visible()
    page.fill("#search", "")
    assert len(visible(page, ".card h3")) == 5


def test_what_is_shown_can_be_had_as_csv(page):
    with page.expect_download() as waiting:
        page.click("#codes-csv")
    text = waiting.value.path().read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert waiting.value.suggested_filename == "phenotypes.csv"
    assert {row["phenotype"] for row in rows} == set("12345")
    meanings = {"Meanings|Myocardial infarction"}
    for row in rows:
        meanings.add(f"Meanings|What {row['code']} stands for, in so many words")
        assert row["description"] in meanings
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV of Sites", exact=False).first.click()
    assert "north,45,1,200" not in waiting.value.path().read_text()  # the comma is quoted
    assert '"1,200"' in waiting.value.path().read_text()


def test_a_link_opens_what_it_leads_to(chromium, pages):
    page = chromium.new_page()
    page.goto(pages["report"].as_uri() + "#phenotype-4")
    assert 0 <= page.locator("#phenotype-4").bounding_box()["y"] < 300
    page.close()


def test_without_its_script_a_page_is_whole(chromium, pages):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["report"].as_uri())
    assert visible(page, ".tools") == []
    assert len(visible(page, ".card h3")) == 5
    page.locator("#phenotype-1 .weights > summary").click()
    page.locator("#phenotype-1 .codes summary").first.click()
    assert page.locator("#phenotype-1 .codes details li").first.is_visible()
    context.close()


def test_on_paper_there_is_nothing_to_click(page):
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert visible(page, "nav, .tools, .table-tools button") == []
    of_codes = "all => all.map(e => !!e.closest('.codes'))"
    folded = page.eval_on_selector_all("details:not([open])", of_codes)
    assert {*folded} == {True}  # only the long lists of codes
