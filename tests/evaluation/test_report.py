"""A run's page: its content, without unproven promises and without loading anything."""

import base64
import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path

import matplotlib
import pytest

from dpfact_flower.errors import DataError, MissingDependencyError
from dpfact_flower.evaluation.finished_run import FinishedRun
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.run_folder import (
    BESIDE,
    Names,
    Review,
    read_json,
    read_model,
    write_config,
    write_json,
    write_model,
    write_names,
)
from dpfact_flower.evaluation.tables import Pair, Replication
from dpfact_flower.privacy import NO_CLAIM, PAPER_CLAIM, PATIENT_CLAIM, rounded_up
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.server.history import read_history, write_history
from tests.evaluation.folders import run_folder
from tests.evaluation.summaries import DEPLOYED, MEASURED, SIMULATED, SPENT

pytestmark = pytest.mark.slow
RANK = 4
OPEN = {"privacy": "none", "claim": NO_CLAIM, "spent": None}
PROMISED = {"privacy": "patient", "claim": PATIENT_CLAIM, "spent": SPENT}
PAPER = {"unit": "entry", "neighbours": "replace", "claim": PAPER_CLAIM, "replacing": None}
PAPERS = {site: dataclasses.replace(own, **PAPER) for site, own in SPENT.per_site.items()}
KINDS = {
    "simulated": SIMULATED,
    "open": dataclasses.replace(SIMULATED, **OPEN),
    "deployed": dataclasses.replace(DEPLOYED, **PROMISED),
    "nothing": dataclasses.replace(
        SIMULATED, privacy="paper", claim=PAPER_CLAIM,
        spent=dataclasses.replace(SPENT, **PAPER, per_site=PAPERS),
        measured=dataclasses.replace(MEASURED, fit_shared=0.0),
    ),
}  # fmt: skip
FILES = ["summary.json", "phenotypes.json", "history.jsonl", "global_model.npz", "config.toml"]
SECTIONS = ["phenotypes", "usage", "details", "prediction", "convergence", "privacy", "settings"]
IN_FIGURES = "4 patterns in figures"
VOID = {"meta", "br", "hr", "img", "link", "input"}
BLOCKS = {"p", "li", "tr", "caption", "figcaption", "h1", "h2", "h3", "h4", "dt", "dd", "article"}


class Page(HTMLParser):
    """A parsed report for tests, which refuses tags that are not closed in order."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.source = write_report(folder).read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.section = "header"
        self.texts: dict[str, str] = {}
        self.blocks: list[tuple[str, str, str]] = []
        self._unfinished: list[tuple[str, str, list[str]]] = []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag == "section":
            self.section = dict(attrs)["id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag in BLOCKS:
            self._unfinished.append((self.section, tag, []))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()
        if tag in BLOCKS:
            section, name, parts = self._unfinished.pop()
            self.blocks.append((section, name, " ".join(" ".join(parts).split())))

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.texts[self.section] = self.texts.get(self.section, "") + data
            for _, _, parts in self._unfinished:
                parts.append(data)

    def cards(self):
        """Return the text of each phenotype's card, by number."""
        return {int(t.split()[0]): t for _, tag, t in self.blocks if tag == "article"}

    def rows_of(self, caption):
        """Return the rows of a table, header first."""
        (place,) = [n for n, block in enumerate(self.blocks) if block[1:] == ("caption", caption)]
        below = takewhile(lambda block: block[1] == "tr", self.blocks[place + 1 :])
        return [text for _, _, text in below]

    def values(self, *names):
        return [value for name, value in self.attributes if name in names]

    def rows(self, section):
        return [text for where, tag, text in self.blocks if (where, tag) == (section, "tr")]


@cache
def page_of(folder: Path) -> Page:
    """Return the page of a folder that no test changes."""
    return Page(folder)


def shares_by_site(page: Page) -> list[str]:
    """Return the rows of the table of prevalences by site, header first."""
    (caption,) = [t for _, tag, t in page.blocks if tag == "caption" and "darker is more" in t]
    return page.rows_of(caption)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A folder of each of `KINDS`, which no test changes."""
    top = tmp_path_factory.mktemp("runs")
    return {name: run_folder(top / name, own, rank=RANK) for name, own in KINDS.items()}


@pytest.fixture
def run(runs, tmp_path) -> Path:
    """A simulation's folder that tests may change."""
    return Path(shutil.copytree(runs["simulated"], tmp_path / "copy"))


def change(path: Path, edit) -> None:
    content = read_json(path)
    edit(content)
    write_json(path, content)


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_whole_well_formed_and_loads_nothing(runs, kind):
    page = page_of(runs[kind])
    learned = kind != "nothing"  # the page says only this
    assert [s for s in page.texts if s in SECTIONS] == SECTIONS[0 if learned else 4 :]
    assert ("Nothing was learned" in page.texts["header"]) == (not learned)
    assert "http:" not in page.source
    assert "https:" not in page.source
    assert not page.tags & {"link", "iframe", "object", "embed", "img"}
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [value for value in page.values("content") if "default-src" in value]
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert all(target.startswith("#") for target in page.values("src", "href", "xlink:href"))
    identifiers = page.values("id")
    assert len(identifiers) == len(set(identifiers))
    assert {target[1:] for target in page.values("href", "xlink:href")} <= set(identifiers)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_what_is_printed_of_a_paper_run_has_unit_relation_and_limits(runs):
    text = " ".join(page_of(runs["nothing"]).texts["privacy"].split())
    for shown in (PAPER_CLAIM, "unit “entry”", "neighbours “replace”", *SPENT.epsilons,
                  "Patient factors", "mortality coefficients", "Other runs"):  # fmt: skip
        assert shown in text
    assert "replacing a" not in text  # it is the counted unit


@pytest.mark.parametrize("kind", ["simulated", "deployed"])
def test_no_epsilon_stands_without_its_claim(runs, kind):
    figures = {rounded_up(epsilon) for epsilon in SPENT.epsilons.values()}
    page = page_of(runs[kind])
    found = set()
    for section, _, text in page.blocks:
        here = {figure for figure in figures if figure in text}
        if section == "privacy" and here:
            assert PATIENT_CLAIM in text
            found |= here
    assert found == figures
    assert {s for s in page.texts if "ε" in page.texts[s]} == {"header", "privacy", "methods"}
    (headline,) = [t for s, tag, t in page.blocks if (s, tag) == ("header", "p") and "ε" in t]
    assert PATIENT_CLAIM in headline
    beside = "This epsilon does not cover this page's figures of patients"
    assert (beside in page.texts["header"]) == (kind == "simulated")
    (row,) = [row for row in page.rows("settings") if row.startswith("epsilon ")]
    assert PATIENT_CLAIM in row


def test_sites_that_spent_differently_have_a_row_each(run):
    def spend_less(summary):
        summary["per_site"]["south"] |= {"claim": "another claim"}
        summary["per_site"]["south"]["epsilons"]["zCDP, tight"] = 0.123

    change(run / "summary.json", spend_less)
    page = Page(run)
    north, south = [r for r in page.rows("privacy") if r.startswith(("north ", "south "))]
    assert PATIENT_CLAIM in north
    assert "4.320" in north
    assert "0.1230" in south
    assert "another claim" in south
    assert all("9.086" in row for row in (north, south))
    assert any("ε for replacing" in row for row in page.rows("privacy"))
    (claim,) = [t for _, tag, t in page.blocks if tag == "p" and "replacing a patient" in t]
    assert "replacing a patient's record: 9.086" in claim
    assert PATIENT_CLAIM in claim
    assert "collude" not in claim
    shared = {"alone": 9.0003, "claim": Sharing(20, 3, 2, 2).claim}
    change(run / "summary.json", lambda summary: summary.update(shared))
    page = Page(run)
    assert "hold if at most 3 of 20 sites collude; if all others" in page.texts["methods"]
    (claim,) = [t for _, tag, t in page.blocks if tag == "p" and "replacing a patient" in t]
    assert "If all other sites collude with the server: ε = 9.001" in claim
    alike = lambda summary: summary["per_site"].update(south=summary["per_site"]["north"])  # noqa: E731
    change(run / "summary.json", alike)
    (row,) = [row for row in Page(run).rows("privacy") if PATIENT_CLAIM in row]
    assert row.startswith("each of the 2 sites")
    assert "came from a seed" not in page.texts["privacy"]
    write_config(run, {"noise-seed": 3}, {})
    assert "came from a seed" in Page(run).texts["privacy"]


def test_a_deployment_shows_what_a_server_can_know(runs):
    page = page_of(runs["deployed"])
    assert "job-1" in page.texts["header"]
    for section in ("convergence", "usage", "phenotypes", "prediction"):
        assert "not measured here" in page.texts[section]
    rows = GlobalModel.read(runs["deployed"]).rows(top=5)
    assert list(page.cards()) == [1, 2, 3, 4]
    for r, card in page.cards().items():
        assert all(row.code in card for row in rows if row.phenotype == r)
        assert "Leading codes. procedures: " in card
        assert "patients" not in card
    assert "patients" not in page.rows("phenotypes")[0]
    (failure,) = page.rows_of("Sites that gave no usable reply to a request")[1:]
    assert failure == "west 2 1–2 late"
    assert 'id="traffic-figure_1"' in page.source
    assert "convergence-figure_1" not in page.source


def test_no_sentence_is_false_of_one_phenotype_of_discharges_at_one_site(tmp_path):
    coherence = dataclasses.replace(MEASURED, coherence=None)
    found = dataclasses.replace(KINDS["open"], sites=1, row_unit="discharge", measured=coherence)
    folder = run_folder(tmp_path / "one", found, rank=1)
    write_config(folder, {"epsilon": 4.0, "nonnegative": False, "loss": "poisson", "seed": 7}, {})
    change(folder / "phenotypes.json", lambda own: own["table"].update(without="hidden"))
    page = Page(folder)
    assert NO_CLAIM in page.texts["privacy"]
    assert "ε" not in page.texts["privacy"]
    (row,) = [row for row in page.rows("settings") if row.startswith("epsilon ")]
    assert "not used" in row
    assert NO_CLAIM in row
    assert "A row of this data is one discharge." in page.texts["header"]
    assert "with an absolute score above 0.15 has the pattern" in page.texts["phenotypes"]
    assert "The share with no pattern is hidden" in page.texts["phenotypes"]
    assert "--phenotype NUMBER" in page.texts["phenotypes"]
    assert "-s seed=8" in page.texts["phenotypes"]
    methods = " ".join(page.texts["methods"].split())
    for part in ("one simulated site", "1 phenotype [how", "codes (20 procedures and 20 diagnoses)",
                 "with the loss “poisson”", "to the phenotypes by least squares"):  # fmt: skip
        assert part in methods
    for absent in ("The protection covers", "dpfact survey", "NPMI", "1 patterns"):
        assert absent not in page.source


def test_phenotypes_come_by_number_with_the_codes_of_the_model(runs):
    page = page_of(runs["simulated"])
    assert list(page.cards()) == [1, 2, 3, 4]
    overview, largest, listed = page.rows("phenotypes")[1:], 0.0, []
    for row in GlobalModel.read(runs["simulated"]).rows(top=16):
        text = row.description.replace("|", " › ")
        code = f"{100 * row.share:.1f} {row.lift:.1f} {row.code} {text}"
        largest = row.share if row.place == 1 else largest
        listed.append(row.share >= 0.03 * largest)
        assert (code in page.cards()[row.phenotype]) == listed[-1]
    assert {*listed} == {False, True}
    for number, card in page.cards().items():
        title = card.split(" #")[0].removeprefix(f"{number} · ")
        assert title.startswith("What ")
        assert overview[number - 1].startswith(f"{number} {title} ")


def test_whom_a_phenotype_concerns_stands_in_the_overview_and_by_site(runs):
    table = read_json(runs["simulated"] / "phenotypes.json")["table"]
    page = page_of(runs["simulated"])
    rows = (page.rows("phenotypes"), shares_by_site(page), page.rows_of(IN_FIGURES))
    for phenotype, *shown in zip(table["phenotypes"], *(of[1:] for of in rows), strict=True):
        overview, by_site, figures = shown
        measures = [phenotype[name] for name in ("prevalence", "precision", "carriers")]
        texts = [m if isinstance(m, str) else f"{100 * m:.1f} %" for m in measures]
        assert texts[0] in overview
        assert f" {' '.join(texts)} " in figures
        assert list(phenotype["by_site"]) == ["north", "south"]
        ends = " ".join(f"{100 * share:.1f}" for share in phenotype["by_site"].values())
        assert by_site.endswith(f" {ends}")


def test_an_outcome_has_its_rate_and_odds_or_the_reason_why_not(run):
    outcomes = [
        {"coefficient": -0.5, "p_value": 0.0004, "interval": [-0.7, -0.3], "rate": 0.2,
         "rate_interval": [0.15, 0.26]},
        {"coefficient": 0.25, "p_value": None, "reason": "p-values need a library"},
        {"reason": "fewer than 10 have both", "rate": "<10"},
        {"coefficient": 5.0, "p_value": 0.04, "interval": [4.0, 6.302], "rate": "hidden"},
    ]  # fmt: skip

    def edit(phenotypes):
        phenotypes["table"]["rates"] = {"died": 0.25, "back in ICU": 0.5}
        for phenotype, outcome in zip(phenotypes["table"]["phenotypes"], outcomes, strict=True):
            far = {"coefficient": 0.5, "p_value": 0.3, "interval": [-1.1, 1.204]}
            phenotype["outcomes"] = {"died": outcome, "back in ICU": far}
            phenotype["prevalence"] = "<10" if outcome is outcomes[3] else 0.125

    change(run / "phenotypes.json", edit)
    change(run / "summary.json", lambda s: s["predictions"].update(fall=s["predictions"]["died"]))
    page = Page(run)
    assert "Fall: no rates, because some sites have no labels." in page.texts["phenotypes"]
    cards, rows = page.cards(), page.rows_of(IN_FIGURES)[1:]
    assert "Death: 20.0 % (95 % interval 15.0 to 26.0 %); all analysed patients 25.0 %." in cards[1]
    few = "fewer than ten, a rate of at most 27.7 %; all analysed patients"
    assert f"Back in ICU: {few} 50.0 %." in cards[1]
    assert all(f"Death: {few} 25.0 %." in cards[number] for number in (2, 3))
    assert "Fewer than ten patients. Not checked" in cards[4]
    overview = page.rows("phenotypes")[1:]
    assert "12.5 % 20.0 % (15.0–26.0)" in overview[0]
    assert "12.5 % <10" in overview[2]
    assert "<10 hidden" in overview[3]
    assert " 0.61 (0.50–0.74) p < 0.001" in rows[0]
    assert " 1.28 – " in rows[1]
    assert " fewer than 10 have both – " in rows[2]
    assert " >99 (55–>99) p = 0.040" in rows[3]
    assert all(row.endswith(" too few –") for row in rows)  # odds of 0.33 to 3.33
    assert 'd="M160 6H160"' in page.source


def test_phenotypes_switched_off_are_marked(runs, run):
    def switch_off(phenotypes):
        usage = phenotypes["usage"]
        for site, number in ((0, 1), (1, 1), (1, 2), (1, 3)):
            usage["off"][site][number] = True
            usage["norms"][site][number] = 0.0

    before = page_of(runs["simulated"])
    assert all(row.endswith(" none") for row in before.rows_of("Sites")[1:])
    assert "Sites whose own" not in before.texts["phenotypes"]
    change(run / "phenotypes.json", switch_off)
    page = Page(run)
    first, second = page.rows_of("Sites")[1:]
    assert first.endswith(" 1 of 4: 2")
    assert second.endswith(" 3 of 4: 2–4")
    assert "Sites whose own model does not use the pattern: north, south." in page.cards()[2]
    assert "Sites whose own model does not use the pattern: south." in page.cards()[3]
    assert "Sites whose own" not in page.cards()[1]
    assert shares_by_site(page) == shares_by_site(before)  # patients may have it all the same
    few = {"by_site": {"north": 0.5, "south": "<10"}}  # as of a site with fewer than ten patients
    change(run / "phenotypes.json", lambda own: [p.update(few) for p in own["table"]["phenotypes"]])
    page = Page(run)
    assert page.rows_of("Sites")[2].endswith(" hidden")
    assert "Sites whose own model does not use the pattern: north." in page.cards()[2]


def test_auc_stands_beside_its_baselines_with_the_warning(runs):
    page = page_of(runs["simulated"])
    overall, south, *others = page.rows("prediction")[1:]
    assert overall == "overall 50 0.788 ± 0.012 0.812 ± 0.010 0.600 ± 0.020"
    assert south == "south 5 – – – fewer than 10 patients with it, or without it"
    assert "overall 50 – – – few" in others  # for the second outcome
    assert "AUC alone is no evidence of phenotype quality" in page.texts["prediction"]


def test_a_fit_of_nothing_and_missing_errors_are_explained(run):
    for fit, is_noise in (-0.01, True), (0.01, False):
        change(run / "summary.json", lambda summary, fit=fit: summary.update(fit=fit))
        assert ("Do not read its phenotypes as clinical findings" in Page(run).source) == is_noise
    says = "Errors were measured after round 2 only"
    change(run / "summary.json", lambda summary: summary["error_by_round"].pop(0))
    assert f"{says}, because in this mode" in Page(run).texts["convergence"]
    change(run / "summary.json", lambda summary: summary.update(privacy="none"))
    assert f"{says}." in Page(run).texts["convergence"]
    change(run / "summary.json", lambda summary: summary.pop("error_by_round"))
    page = Page(run)
    assert "because the loss is not the squared error" in page.texts["convergence"]
    assert ("usage", "caption", "Sites") not in page.blocks


def test_the_words_of_the_overview_are_explained_below_it(run):
    assert "It is not known yet how sure" in Page(run).texts["phenotypes"]
    change(run / "summary.json", lambda summary: summary.update(false_discovery=[0.1] * RANK))
    assert "up to 10 % (likely real)" in Page(run).texts["phenotypes"]
    write_json(run / BESIDE, [Replication("other", "", RANK, ())])
    shown = Page(run).texts["phenotypes"]
    assert "a stable pattern was found in every other run" in shown
    assert "no epsilon covers" not in shown
    write_json(run / BESIDE, [Replication("other", "without noise", RANK, ())])
    assert "no epsilon covers these words" in Page(run).texts["phenotypes"]
    assert "up to 10 % (likely real)" in shown
    found = tuple(Pair(number, number, 0.9, 0.7, 0.5) for number in (1, 2))
    write_json(run / BESIDE, [Replication("other", "", RANK, found)])
    for chances, listed in ([0.1, 0.6, 0.1, 0.3], "1. First"), ([0.6] * RANK, "none. First"):
        change(run / "summary.json", lambda own, p=chances: own.update(false_discovery=p))
        page = Page(run)
        assert f"neither doubtful nor not found: {listed}" in page.texts["phenotypes"]
    change(run / "summary.json", lambda own: own.update(false_discovery=[0.1] * RANK))
    write_names(run, Names({}, {1: Review("drop")}))
    assert "neither doubtful nor not found: 2. First" in Page(run).texts["phenotypes"]
    methods = " ".join(page.texts["methods"].split())
    for part in ("260 patients [source, years and exclusions, such as", "2 simulated sites [how]",
                 "4 phenotypes [how this number was chosen]", "ε = 4.000 and δ = 1e-05",
                 "matched a phenotype in another run"):  # fmt: skip
        assert part in methods
    change(run / "summary.json", lambda own: own.update(privacy="none", claim=NO_CLAIM, spent=None))
    counts = [["sites", "rows", 1230], ["patients", "left out", 10]]
    change(run / "summary.json", lambda own: own.update(read_report=counts))
    page = Page(run)
    assert "No noise was added, and no privacy guarantee holds" in page.texts["methods"]
    rows = page.rows_of("Records read, kept and left out, rounded to tens (1 to 14 counts as 10)")
    assert rows[1:] == ["sites rows 1,230", "patients left out 10"]


def test_failures_are_gathered_and_missed_quorums_named(run):
    first, second = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]

    def page(*failures, updated=True):
        lines = [record | {"round": number, "failures": own, "updated": updated or number < 3,
                           "seconds": SIMULATED.exchange.seconds / 3}
                 for number, (record, own) in enumerate(zip((first, second, second), failures,
                 strict=True), start=1)]  # fmt: skip
        (run / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return Page(run)

    assert "No site failed in 3 rounds" in page([], [], []).texts["convergence"]
    late, gone = {"who": "site-2", "reason": "late"}, {"who": "x", "reason": "gone"}
    found = page([late], [], [late, gone], updated=False)
    failures = found.rows_of("Sites that gave no usable reply to a request")
    assert failures[1:] == ["site-2 2 1, 3 late", "x 1 3 gone"]
    assert "Quorum missed in round 3:" in found.texts["convergence"]


def test_everything_from_outside_is_escaped(runs, run):
    bad = "<script>alert('&')</script><b onclick=x>"

    def poison_phenotypes(phenotypes):
        reason = {"coefficient": None, "p_value": None, "reason": bad}
        for phenotype in phenotypes["table"]["phenotypes"]:
            phenotype["outcomes"] = {"died": reason, bad: reason}
            phenotype["by_site"] = {bad: 0.5}
        phenotypes["table"]["rates"][bad] = None
        phenotypes["usage"]["sites"][0] = bad

    def poison_summary(summary):
        summary |= {"name": bad, "solver": bad, "claim": bad}
        summary["predictions"]["died"]["overall"]["group"] = bad
        summary["per_site_data"][0]["site"] = bad

    change(run / "phenotypes.json", poison_phenotypes)
    change(run / "summary.json", poison_summary)
    lines = (run / "history.jsonl").read_text().splitlines()
    first = json.loads(lines[0]) | {"failures": [{"who": bad, "reason": bad}]}
    (run / "history.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
    factors, vocabularies = read_model(run)
    texts = [dataclasses.replace(v, descriptions=(bad,) * len(v)) for v in vocabularies]
    write_model(run, factors, texts)
    write_names(run, Names({2: bad}))
    page = Page(run)
    assert page.scripts == page_of(runs["simulated"]).scripts
    assert page.cards()[2].startswith(f"2 · {bad} ")
    assert all(f" {bad}" in card for card in page.cards().values())
    assert "onclick" not in dict(page.attributes)
    for section in ("header", "privacy", "convergence", "phenotypes", "usage", "details",
                    "prediction"):  # fmt: skip
        assert bad in page.texts[section]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_leaves_the_old_report(run, name):
    (run / "report.html").write_text("old")
    path = run / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1])
    with pytest.raises(DataError, match=name):
        write_report(run)
    assert (run / "report.html").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "edit", "says"),
    [
        ("phenotypes.json", lambda phenotypes: phenotypes["usage"]["off"].pop(), "not belong"),
        ("summary.json", lambda summary: summary.update(rank=0), "do not belong together"),
        ("summary.json", lambda summary: summary.update(seconds=1.0), "continue it with resume="),
    ],
)
def test_files_that_do_not_belong_together_are_refused(run, name, edit, says):
    change(run / name, edit)  # another history is that of a later run, which has no results yet
    with pytest.raises(DataError, match=says):
        write_report(run)


def test_a_round_that_must_be_repeated_does_not_keep_a_run_from_its_report(run):
    *_, last = records = read_history(run)
    again = dataclasses.replace(last, round=last.round + 1, updated=False, seconds=1.0)
    write_history(run, [*records, again], durable=False)
    assert FinishedRun.read(run).records == tuple(records)


@pytest.mark.nightly
@pytest.mark.process
def test_the_same_folder_gives_the_same_bytes(runs, run):
    first = page_of(runs["simulated"]).source.encode()
    with matplotlib.rc_context({"axes.linewidth": 5, "svg.hashsalt": None}):
        assert write_report(run).read_bytes() == first
        assert matplotlib.rcParams["axes.linewidth"] == 5
    script = f"""
import sys
from pathlib import Path
from dpfact_flower.evaluation.report import write_report
write_report(Path({str(run)!r}))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (run / "report.html").read_bytes() == first


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_is_named_with_the_way_to_get_it(run, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=rf"{library}.*dpfact-flower\[report\]"):
        write_report(run)
