import base64
import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest

from dpfact_flower.client_app import app as client_app
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, MissingDependencyError
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.run_folder import (
    read_json,
    read_model,
    write_json,
    write_model,
    write_name,
)
from dpfact_flower.privacy import NO_CLAIM, PAPER_CLAIM, SEEDED_CLAIM, rounded_up
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.runtime.federate import federate
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.runtime.serve import serve

PUBLIC = {"rounds": 3, "rank": 4, "privacy": "none", "relative-l21": 0.0}
PAPER = {"rounds": 3, "rank": 4, "privacy": "paper", "solver": "psgd", "clip": 1.0, "eta": 1e-3,
         "epsilon": 1.2}  # fmt: skip
FILES = ["summary.json", "phenotypes.json", "history.jsonl", "global_model.npz", "config.toml"]
SECTIONS = [
    "phenotypes", "usage", "details", "prediction", "convergence", "privacy", "settings"
]  # fmt: skip
VOID = {"meta", "br", "hr", "img", "link", "input"}
BLOCKS = {"p", "li", "tr", "caption", "figcaption", "h1", "h2", "h3", "h4", "dt", "dd", "article"}


class Page(HTMLParser):
    """What a test asks of a report; refuses tags that are not closed in order."""

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
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in BLOCKS:
            self._unfinished.append((self.section, tag, []))

    def handle_startendtag(self, tag, attrs):
        self._note(tag, attrs)

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

    def _note(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag == "section":
            self.section = dict(attrs)["id"]

    def cards(self):
        """Text of each phenotype's card, by its number."""
        return {int(t.split()[0]): t for _, tag, t in self.blocks if tag == "article"}

    def rows_of(self, caption):
        """Rows of one table, its header first."""
        (place,) = [
            i for i, (_, tag, t) in enumerate(self.blocks) if (tag, t) == ("caption", caption)
        ]
        rows = []
        for _, tag, text in self.blocks[place + 1 :]:
            if tag != "tr":
                break
            rows.append(text)
        return rows

    def values(self, *names):
        return [value for name, value in self.attributes if name in names]

    def rows(self, section):
        return [text for where, tag, text in self.blocks if (where, tag) == (section, "tr")]


@cache
def page_of(folder: Path) -> Page:
    """The page of a folder that no test changes."""
    return Page(folder)


@pytest.fixture(scope="module")
def labelled(cohort) -> Cohort:
    """The small cohort with outcomes and descriptions; the third site has nobody who died."""
    words = [
        Vocabulary(v.name, v.codes, tuple(f"about {c}" for c in v.codes))
        for v in cohort.vocabularies
    ]
    sites = []
    for site in cohort.sites:
        many = site.tensor.n_patients
        labels = [int(n % 4 == 0 and site.name != "site-3") for n in range(many)]
        sites.append(SiteData(site.name, site.tensor, tuple(words), labels))
    return dataclasses.replace(cohort, sites=tuple(sites))


@pytest.fixture(scope="module")
def data(labelled, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    labelled.save(folder)
    return folder


@pytest.fixture(scope="module")
def public_run(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("public") / "run"
    return federate({**PUBLIC, "data": str(data), "out": str(out)})


@pytest.fixture(scope="module")
def paper_run(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("paper") / "run"
    return federate({**PAPER, "data": str(data), "out": str(out)})


@pytest.fixture(scope="module")
def deployed_run(data, labelled, tmp_path_factory) -> Path:
    """What a server leaves that has never seen a patient; its third site refuses to take part."""
    folder = tmp_path_factory.mktemp("deployed")
    nodes = [
        {"site": site.name, "data-path": str(data / f"{site.name}.npz"),
         "state-dir": str(folder / site.name),
         "allow-privacy": "none" if site.name == "site-3" else "paper",
         "max-epsilon": 0.0 if site.name == "site-3" else 10.0}
        for site in labelled.sites
    ]  # fmt: skip
    lists = [str(data / f"{v.name}.vocabulary.json") for v in labelled.vocabularies]
    config = {**PAPER, "data": "", "vocabulary": ",".join(lists), "out": str(folder / "run"),
              "job": "trial-7", "sites": 3, "preflight": "off"}  # fmt: skip
    return serve(InProcessGrid(client_app, nodes, config), RunConfig.read(config))


@pytest.fixture
def run(public_run, tmp_path) -> Path:
    """A run's folder to change."""
    return Path(shutil.copytree(public_run, tmp_path / "copy"))


def change(path: Path, edit) -> None:
    content = read_json(path)
    edit(content)
    write_json(path, content)


@pytest.mark.parametrize("kind", ["public_run", "paper_run", "deployed_run"])
def test_a_report_is_whole_well_formed_and_loads_nothing(kind, request):
    page = page_of(request.getfixturevalue(kind))
    learned = kind != "paper_run"  # its noise leaves nothing: the page says so, and no more
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


def test_headline_figures_are_those_of_the_summary(public_run):
    summary = read_json(public_run / "summary.json")
    page = page_of(public_run)
    header, fit = page.texts["header"], page.texts["convergence"]
    assert summary["name"] in header
    assert "Four patterns" in header
    for shown in (f"{100 * summary['fit_shared']:.1f} %",
                  f"{100 * summary['fit_frequencies']:.1f} %"):  # fmt: skip
        assert shown in fit
    for shown in (f"{100 * summary['fit']:.1f} %", f"{summary['rmse']:.4g}",
                  f"{summary['auc']:.3f}", f"{summary['bytes_up'] / 1000:.3g} kB",
                  f"{(summary['bytes_up'] + summary['bytes_down']) / summary['bytes_paper']:.2f}",
                  "procedures: 9, diagnoses: 12"):  # fmt: skip
        assert shown in fit


def test_a_run_without_privacy_says_so(public_run):
    page = page_of(public_run)
    assert NO_CLAIM in page.texts["privacy"]
    assert "ε" not in page.texts["privacy"]
    (row,) = [row for row in page.rows("settings") if row.startswith("epsilon ")]
    assert "not used" in row
    assert NO_CLAIM in row


def test_what_is_printed_of_a_paper_run_has_unit_relation_and_limits(paper_run):
    summary = read_json(paper_run / "summary.json")
    text = " ".join(page_of(paper_run).texts["privacy"].split())
    for shown in (PAPER_CLAIM, "unit “entry”", "neighbours “replace”", *summary["epsilons"],
                  "Patient factors", "mortality coefficients", "Other runs"):  # fmt: skip
        assert shown in text


@pytest.mark.parametrize("kind", ["paper_run", "deployed_run"])
def test_no_epsilon_stands_without_its_claim(kind, request):
    folder = request.getfixturevalue(kind)
    summary = read_json(folder / "summary.json")
    spent = [summary, *summary["per_site"].values()]
    figures = {rounded_up(e) for guarantee in spent for e in guarantee["epsilons"].values()}
    assert len(figures) >= 3
    page = page_of(folder)
    found = set()
    for section, _, text in page.blocks:
        here = {figure for figure in figures if figure in text}
        if section == "privacy" and here:
            assert PAPER_CLAIM in text
            found |= here
    assert found == figures
    assert not [s for s in SECTIONS if s != "privacy" and "ε" in page.texts.get(s, "")]
    (headline,) = [t for s, tag, t in page.blocks if (s, tag) == ("header", "p") and "ε" in t]
    assert PAPER_CLAIM in headline
    (row,) = [row for row in page.rows("settings") if row.startswith("epsilon ")]
    assert PAPER_CLAIM in row


def test_sites_that_spent_differently_have_a_row_each(paper_run, tmp_path):
    folder = Path(shutil.copytree(paper_run, tmp_path / "copy"))
    alike = [row for row in page_of(paper_run).rows("privacy") if PAPER_CLAIM in row]
    assert len(alike) == 1
    assert alike[0].startswith("each of the 3 sites")

    def spend_less(summary):
        summary["per_site"]["site-2"] |= {"releases": 4, "claim": "another claim"}
        summary["per_site"]["site-2"]["epsilons"]["zCDP, tight"] = 0.123

    change(folder / "summary.json", spend_less)
    rows = [
        row for row in Page(folder).rows("privacy") if row.endswith("claim") or PAPER_CLAIM in row
    ]
    rows = [row for row in rows if row.startswith("site-")]
    assert [row.split(" 1.200")[0] for row in rows] == ["site-1, site-3", "site-2"]
    assert PAPER_CLAIM in rows[0]
    assert "0.1230" in rows[1]
    assert "another claim" in rows[1]


def test_the_price_of_replacing_a_record_stands_beside_the_epsilon(paper_run, tmp_path):
    folder = Path(shutil.copytree(paper_run, tmp_path / "copy"))
    assert "replacing a" not in page_of(paper_run).texts["privacy"]  # it is what is counted

    def as_if_of_patients(summary):
        for spent in (summary, *summary["per_site"].values()):
            spent |= {"neighbours": "add-remove", "replacing": 7.654321}

    change(folder / "summary.json", as_if_of_patients)
    page = Page(folder)
    (claim,) = [t for _, tag, t in page.blocks if tag == "p" and "replacing a patient" in t]
    assert "replacing a patient's record: 7.655" in claim
    assert PAPER_CLAIM in claim
    rows = page.rows("privacy")
    assert any("ε for replacing" in row for row in rows)
    assert sum("7.655" in row for row in rows) == 1


def test_seeded_noise_voids_every_figure(data, tmp_path):
    config = {**PAPER, "data": str(data), "out": str(tmp_path / "run"), "noise-seed": 3}
    page = Page(federate(config))
    claims = [text for section, _, text in page.blocks if section == "privacy" and "1.200" in text]
    assert len(claims) == 2
    assert all(f"{SEEDED_CLAIM} ({PAPER_CLAIM})" in text for text in claims)
    assert "came from a seed" in page.texts["privacy"]


def test_a_deployment_shows_what_a_server_can_know(deployed_run):
    page = page_of(deployed_run)
    assert "trial-7" in page.texts["header"]
    for section in ("convergence", "usage", "phenotypes", "prediction"):
        assert "measured only where the data is" in page.texts[section]
    codes = read_json(deployed_run / "phenotypes.json")["codes"]
    assert list(page.cards()) == [1, 2, 3, 4]
    for r, card in page.cards().items():
        for columns in codes.values():
            assert all(f"{c['code']} {c['description']}" in card for c in columns[r - 1])
        assert "Leading codes. procedures: " in card
        assert "patients" not in card
    assert "patients" not in page.rows("phenotypes")[0]
    (failure,) = page.rows_of("Sites that were asked and gave no usable reply")[1:]
    assert " 3 1–3 " in failure
    assert "dpfact:privacy-refused" in failure
    assert 'id="traffic-figure_1"' in page.source
    assert "convergence-figure_1" not in page.source


def test_phenotypes_come_by_number_with_the_codes_of_the_model(public_run):
    page = page_of(public_run)
    assert list(page.cards()) == [1, 2, 3, 4]
    overview = page.rows("phenotypes")[1:]
    for row in GlobalModel.read(public_run).rows():
        if row.share > 0.02:
            code = f"{100 * row.share:.1f} {row.lift:.1f} {row.code} about {row.code}"
            assert code in page.cards()[row.phenotype]
    for number, card in page.cards().items():
        title = card.split(" #")[0].removeprefix(f"{number} · ")
        assert title.startswith("About ")
        assert overview[number - 1].startswith(f"{number} {title} ")


def test_whom_a_phenotype_concerns_stands_in_the_overview_and_by_site(public_run):
    table = read_json(public_run / "phenotypes.json")["table"]
    page = page_of(public_run)
    for phenotype, row in zip(table["phenotypes"], page.rows("phenotypes")[1:], strict=False):
        share = phenotype["prevalence"]
        assert (share if isinstance(share, str) else f"{100 * share:.1f} %") in row
    (caption,) = [
        t for _, tag, t in page.blocks if tag == "caption" and t.startswith("Share of each")
    ]
    for phenotype, row in zip(table["phenotypes"], page.rows_of(caption)[1:], strict=True):
        shown = [
            v if isinstance(v, str) else f"{100 * v:.1f}" for v in phenotype["by_site"].values()
        ]
        assert len(shown) == 3
        assert row.endswith(" ".join(shown))


def test_an_outcome_has_its_rate_and_odds_or_the_reason_why_not(run):
    outcomes = [
        {"coefficient": -0.5, "p_value": 0.0004, "interval": [-0.7, -0.3], "rate": 0.2,
         "rate_interval": [0.15, 0.26]},
        {"coefficient": 0.25, "p_value": None, "reason": "p-values need a library"},
        {"reason": "fewer than 10 patients with both", "rate": "<10"},
        {"coefficient": 2.0, "p_value": 0.04, "interval": [0.1, 2.302], "rate": "hidden"},
    ]  # fmt: skip

    def edit(phenotypes):
        phenotypes["table"]["rates"] = {"died": 0.25, "back in a week": 0.5}
        for phenotype, outcome in zip(phenotypes["table"]["phenotypes"], outcomes, strict=True):
            far = {"coefficient": 0.5, "p_value": 0.3, "interval": [-0.1, 2.304]}
            phenotype["outcomes"] = {"died": outcome, "back in a week": far}
            phenotype["prevalence"] = "<10" if outcome is outcomes[3] else 0.125

    change(run / "phenotypes.json", edit)
    page = Page(run)
    cards, rows = page.cards(), page.rows_of("4 patterns, in figures")[1:]
    died = "Death in hospital: 20.0 % (95 % interval 15.0 to 26.0 %); of all patients 25.0 %."
    assert died in cards[1]
    assert "Back in a week: too few to say; of all patients 50.0 %." in cards[1]
    for number in (2, 3):
        assert "Death in hospital: too few to say; of all patients 25.0 %." in cards[number]
    assert "Fewer than ten patients. Not checked" in cards[4]
    overview = page.rows("phenotypes")[1:]
    assert "12.5 % 20.0 % (15.0–26.0)" in overview[0]
    assert "12.5 % too few" in overview[2]
    assert " 0.61 (0.50–0.74) p < 0.001" in rows[0]
    assert " 1.28 – " in rows[1]
    assert " fewer than 10 patients with both – " in rows[2]
    assert " 7.39 (1.11–9.99) p = 0.040" in rows[3]
    assert all(row.endswith(" too few p = 0.300") for row in rows)  # odds of up to 10.01


def test_phenotypes_switched_off_are_marked(public_run, run):
    def switch_off(phenotypes):
        usage = phenotypes["usage"]
        for site, number in ((0, 1), (2, 1), (2, 2), (2, 3)):
            usage["off"][site][number] = True
            usage["norms"][site][number] = 0.0

    before = page_of(public_run)
    assert all(row.endswith(" none") for row in before.rows_of("Sites")[1:])
    assert "Switched off" not in before.texts["phenotypes"]
    change(run / "phenotypes.json", switch_off)
    page = Page(run)
    first, second, third = page.rows_of("Sites")[1:]
    assert first.endswith(" 1 of 4: 2")
    assert second.endswith(" none")
    assert third.endswith(" 3 of 4: 2–4")
    assert "Switched off by site-1, site-3." in page.cards()[2]
    assert "Switched off" not in page.cards()[1]
    (caption,) = [t for _, tag, t in page.blocks if tag == "caption" and "darker is more" in t]
    assert [row.count("off") for row in page.rows_of(caption)[1:]] == [0, 2, 1, 1]


def test_auc_stands_beside_its_baselines_with_the_warning(public_run):
    page = page_of(public_run)
    prediction = read_json(public_run / "summary.json")["predictions"]["died"]
    overall, *sites = page.rows("prediction")[1:]
    for key in ("memberships", "raw_codes", "volume"):
        found = prediction["overall"][key]
        assert f"{found['mean']:.3f} ± {found['spread']:.3f}" in overall
    assert "fewer than 5 patients with or without it" in sites[2]
    assert "AUC alone is no evidence of phenotype quality" in page.texts["prediction"]


def test_a_model_that_explains_nothing_is_not_to_be_read(public_run, run):
    warning = "should not be read as clinical findings"
    assert read_json(run / "summary.json")["fit"] > 0
    assert warning not in page_of(public_run).source
    change(run / "summary.json", lambda summary: summary.update(fit=-0.01))
    assert warning in Page(run).source


def test_failures_are_gathered_and_missed_quorums_named(public_run, run):
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert "No site failed in 3 rounds" in page_of(public_run).texts["convergence"]
    lines[0]["failures"] = [{"who": "site-2", "reason": "late"}]
    lines[2]["failures"] = [{"who": "site-2", "reason": "late"}, {"who": "x", "reason": "gone"}]
    lines[2]["updated"] = False
    (run / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = Page(run)
    failures = page.rows_of("Sites that were asked and gave no usable reply")
    assert failures[1:] == ["site-2 2 1, 3 late", "x 1 3 gone"]
    assert "Quorum missed in round 3:" in page.texts["convergence"]


def test_everything_from_outside_is_escaped(public_run, run):
    bad = "<script>alert('&')</script><b onclick=x>"

    def poison_phenotypes(phenotypes):
        for phenotype in phenotypes["table"]["phenotypes"]:
            reason = {"coefficient": None, "p_value": None, "reason": bad}
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
    write_name(run, 2, bad, 4)
    page = Page(run)
    assert page.scripts == page_of(public_run).scripts
    assert page.cards()[2].startswith(f"2 · {bad} ")
    assert all(f"P01 {bad}" in card for card in page.cards().values())
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


DAMAGES = {
    "a site's row too few": ("phenotypes.json", lambda p: p["usage"]["off"].pop()),
    "a model without phenotypes": ("summary.json", lambda summary: summary.update(rank=0)),
}


@pytest.mark.parametrize(("name", "edit"), DAMAGES.values(), ids=DAMAGES)
def test_files_that_do_not_belong_together_are_refused(run, name, edit):
    change(run / name, edit)
    with pytest.raises(DataError, match="do not belong together"):
        write_report(run)


@pytest.mark.process
def test_the_same_folder_gives_the_same_bytes(public_run, run):
    first = page_of(public_run).source.encode()
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


@pytest.mark.process
def test_a_site_never_imports_what_reports_are_drawn_with():
    script = """
import sys
import dpfact_flower.client_app, dpfact_flower.evaluation.report
assert not {"matplotlib", "jinja2"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
