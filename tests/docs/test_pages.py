"""README and docs, followed literally: every command and Python block is run, or listed here.

Pages of `FOLLOWED` are run from top to bottom in an empty folder, on a small cohort in place of the
demo's. All other units are in `ELSEWHERE` with the test that runs them, or in `NOT_RUN` with the
reason. Their options and settings are checked too.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import util
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import pandas as pd
import pytest
import typer
from flwr.app import Context, RecordDict
from flwr.server import ServerApp
from typer.testing import CliRunner

mpl.use("agg")
from matplotlib import pyplot

from dpfact_flower import InProcessGrid, cli, legacy, settings
from dpfact_flower.data import synthetic
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.machine.flower import QUIET
from dpfact_flower.privacy.ledger import Ledger
from tests.data.readers.test_event_tables import LABELS, SITES
from tests.docs.pages import PATHS, ROOT, SMALL, Unit, units
from tests.docs.test_data import write_sources
from tests.patience import PATIENCE

UNITS = [unit for path in PATHS for unit in units(path)]

INSTALLS = "installs: every run of the tests is inside what it installs"
HOURS = "minutes to hours; tests/simulation runs each of these on little"
DEPLOYED = "needs machines of its own; the commands around it are run in tests/runtime"
ONE_MACHINE = (
    "tests/runtime/test_installation.py::"
    "test_a_centre_and_two_hospitals_are_set_up_by_one_command_each_and_run"
)
_GROUPS = (
    "tests/evaluation/test_clinical.py::test_the_table_the_frame_and_the_comparison_tell_the_groups"
)
ELSEWHERE = {
    ("docs/how-to/data.md", "dpfact data "): "tests/docs/test_data.py::"
    "test_the_commands_run_as_they_stand",
    ("docs/how-to/data.md", "from dpfact_flower"): "tests/docs/test_data.py::"
    "test_the_wide_table_is_melted_into_a_row_per_code",
    ("docs/how-to/results.md", ""): "tests/docs/test_results.py::test_the_page_runs_as_it_stands",
    ("docs/how-to/clinical-reality.md", "dpfact survey "): "tests/evaluation/test_survey.py::"
    "test_answers_are_scored",
    ("docs/how-to/clinical-reality.md", "dpfact report "): "tests/cli/test_main.py::"
    "test_data_run_and_report",
    ("docs/how-to/clinical-reality.md", "dpfact export "): _GROUPS,
    ("docs/how-to/clinical-reality.md", "dpfact compare "): _GROUPS,
    ("docs/how-to/extend.md", ""): "tests/docs/test_extend.py::"
    "test_a_rule_with_a_release_of_its_own_is_charged_and_learns",
    ("docs/tutorial.md", "dpfact demo"): "tests/runtime/test_runtimes.py::"
    "test_the_command_runs_in_flowers_simulation_and_its_config_repeats_it_elsewhere",
    ("docs/how-to/audit.md", "dpfact audit "): "tests/cli/test_privacy.py::"
    "test_a_cohort_passes_and_nothing_is_left_behind",
    ("docs/evaluation.md", ""): "tests/simulation/test_paper.py::"
    "test_the_commands_for_full_data_run_on_the_demos",
    ("docs/explanation/certainty.md", "dpfact simulate "): "tests/server/test_patient.py::"
    "test_as_many_phenotypes_are_learned_as_were_planted",
    ("docs/explanation/secure-sums.md", "dpfact plan "): "tests/cli/test_plan.py::"
    "test_it_says_what_secure_sums_are_worth_and_rest_on",
    **{("docs/how-to/deploy.md", begin): ONE_MACHINE for begin in (
        "dpfact data synthetic", "dpfact centre ", "dpfact site init", "sh try/", "dpfact submit ",
        "dpfact ledger ", "sudo -u dpfact-centre /opt/dpfact/bin/dpfact ")},
    ("docs/how-to/deploy.md", "sudo /opt/dpfact/bin/dpfact "): "tests/runtime/page.py::prepare",
    ("docs/how-to/deploy.md", "sudo sh "): "tests/runtime/page.py::prepare",
    ("docs/how-to/deploy.md", "dpfact data events "):
    "tests/cli/test_data.py::test_a_hospital_keeps_to_the_public_code_lists",
    ("docs/how-to/deploy.md", "sudo -u dpfact-site /opt/dpfact/bin/dpfact site refit"):
    "tests/cli/test_site.py::test_refit_fits_every_run_that_has_ended_and_one_by_its_name_again",
    ("docs/how-to/deploy.md", "sudo -u dpfact-site /opt/dpfact/bin/dpfact keys make"):
    "tests/cli/test_site.py::test_keys_of_two_hospitals_fit_each_other",
    ("docs/how-to/deploy.md", "dpfact site metrics "): "tests/cli/test_site.py::"
    "test_metrics_say_what_is_left",
    ("docs/how-to/deploy.md", "dpfact status "): "tests/cli/test_deployment.py::"
    "test_status_exits_with_1_until_the_run_is_finished",
}  # fmt: skip
"""Page and beginning of its units, with the test (or its helper) that runs these or similar
units."""
NOT_RUN = {
    ("README.md", "make "): INSTALLS,
    ("README.md", ". "): INSTALLS,
    ("README.md", "pip install "): INSTALLS,
    ("docs/install.md", ""): INSTALLS,
    ("docs/tutorial.md", "make demo"): INSTALLS,
    ("docs/tutorial.md", ". "): INSTALLS,
    ("docs/tutorial.md", "pip install "): INSTALLS,
    ("docs/results.md", ""): HOURS,
    ("docs/results/commands.md", ""): HOURS,
    **{(f"docs/{page}.md", "python -m simulation"): HOURS for page in (
        "comparison", "explanation/certainty", "explanation/algorithm",
        "explanation/proof", "explanation/what-leaves", "how-to/clinical-reality",
        "how-to/slow-sites")},
    ("docs/gallery.md", ""): "made the reports beside it; README and tutorial run the same on "
    "little",
    ("docs/how-to/audit.md", "python -m pytest"): "these tests themselves",
    ("docs/explanation/algorithm.md", "dpfact run "): HOURS,
    ("docs/how-to/faults.md", "openssl s_client"): DEPLOYED,
    ("docs/how-to/deploy.md", "pip wheel "): INSTALLS,
    ("docs/how-to/deploy.md", "docker "): DEPLOYED,
    ("docs/how-to/deploy.md", "export PATH"): INSTALLS,
    ("docs/how-to/deploy.md", "sudo python3 "): INSTALLS,
    ("docs/how-to/deploy.md", "sudo /opt/dpfact/bin/pip "): INSTALLS,
    ("docs/how-to/deploy.md", "curl "): DEPLOYED,
}  # fmt: skip
"""Page and beginning of its units, with the reason why nothing runs them."""
FOLLOWED = (
    "README.md", "docs/tutorial.md", "docs/how-to/existing-flower.md", "docs/how-to/ledger.md",
    "docs/how-to/deploy.md",
)  # fmt: skip
"""Pages that `test_a_page_is_followed` runs, except for the units listed above."""


def listed(unit: Unit) -> list[tuple[str, str]]:
    """Return the list entries for a unit. If there are two, one is the beginning of the other."""
    entries = [*ELSEWHERE, *NOT_RUN]
    return [(page, begin) for page, begin in entries
            if unit.page == page and unit.text.startswith(begin)]  # fmt: skip


def test_every_command_and_python_block_is_run_or_listed_with_a_reason():
    left = [unit for unit in UNITS if not listed(unit) and unit.page not in FOLLOWED]
    assert not left, [f"{unit.page}:{unit.line}: {unit.text}" for unit in left]
    used = {entry for unit in UNITS for entry in listed(unit)}
    assert used == {*ELSEWHERE, *NOT_RUN}, "an entry that no page needs any more"


def test_a_page_that_shows_something_new_is_noticed(tmp_path, monkeypatch):
    text = "Text\n\n    pip install x  # so\n    dpfact run \\\n      --out y\n\n    g = a / b\n"
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    (tmp_path / "new.md").write_text(f"{text}\n```python\nx = 1\n```\n\n```toml\ny = 1\n```\n")
    found = units(tmp_path / "new.md")
    assert [(u.line, u.python, u.text) for u in found] == [
        (3, False, "pip install x"), (3, False, "dpfact run --out y"), (9, True, "x = 1\n"),
    ]  # fmt: skip
    assert not any(map(listed, found))


@pytest.mark.parametrize("test", sorted({*ELSEWHERE.values()}))
def test_the_test_that_runs_a_page_is_there(test):
    path, _, name = test.partition("::")
    assert re.search(rf"\bdef {name}\(", (ROOT / path).read_text(encoding="utf-8"))


def test_the_gallery_shows_every_report_and_is_small():
    docs = ROOT / "docs"
    text = (docs / "gallery.md").read_text(encoding="utf-8")
    for folder, most in (("reports", 500_000), ("images/gallery", 200_000)):
        shown = set(re.findall(rf"{folder}/([\w.]+)", text))
        assert shown == {path.name for path in (docs / folder).iterdir()}
        assert all((docs / folder / name).stat().st_size < most for name in shown)


# --- What all pages say, run or not ---------------------------------------------------------------

KEYS = {
    row.key
    for kind in (
        settings.AppSettings, settings.RunSettings, settings.SolverSettings,
        settings.PrivacySettings, settings.SiteSettings,
    )
    for row in settings.describe(kind)
}  # fmt: skip
DPFACT = typer.main.get_command(cli.app)


def unknown(words: list[str]) -> list[str]:
    """Return the options and settings in a dpfact command that do not exist."""
    command: click.Command = DPFACT
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        # Readers are created now. A page's own reader has the options of all readers.
        name = "mimic4" if rest[0].endswith(".sql") else rest[0]
        found = command.get_command(click.Context(command), name)
        if found is None:
            break
        command, rest = found, rest[1:]
    if isinstance(command, click.Group) and not (rest and rest[0].startswith("--")):
        return words
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    wrong = [word for word in rest if re.match(r"--?[a-z]", word) and word not in known]
    given = [word for flag, word in pairwise(rest) if flag in ("-s", "--set")]
    return wrong + [word for word in given if word.partition("=")[0] not in KEYS]


@pytest.mark.parametrize("page", sorted({unit.page for unit in UNITS}))
def test_every_command_has_the_options_and_settings_that_it_is_given(page):
    for unit in UNITS:
        if unit.page != page or unit.python:
            continue
        command = unit.text.partition(" | ")[0]
        words = shlex.split(re.sub(r"^sudo (-u \S+ )?/opt/dpfact/bin/", "", command))
        if words[0] == "dpfact":
            assert unknown(words) == [], unit
        if re.match("python -m (simulation|laboratory)", unit.text):
            path = Path(util.find_spec(words[2]).origin)
            main = path.with_name("__main__.py") if path.name == "__init__.py" else path
            source = main.read_text(encoding="utf-8")
            for word in words[3:]:
                assert not word.startswith("--") or f'"{word}"' in source, unit
        if words[0] == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), unit


FLOWERS_COMMAND = re.compile(
    r"^    (?:.*=\S*/)?(?:flwr|flower-\w+|dpfact site connect|dpfact superlink) \S", re.MULTILINE
)
APP_PAGE = ROOT / "simulation" / "dpfact-app" / "README.md"


@pytest.mark.parametrize(
    "page", [*PATHS, APP_PAGE], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_telemetry_is_off_before_a_command_of_flowers_is_typed(page):
    text, quiet = page.read_text(encoding="utf-8"), [f"{key}={QUIET[key]}" for key in QUIET]
    for command in FLOWERS_COMMAND.finditer(text):
        before = text[: command.start()].splitlines()
        exported = [line for line in before if line.startswith("    export ")]
        assert any(all(each in line for each in quiet) for line in exported), command[0].strip()


def test_a_command_that_is_not_there_is_noticed():
    assert unknown(shlex.split("dpfact run --out x -s rank=3")) == []
    assert unknown(shlex.split("dpfact run --into x -s renk=3")) == ["--into", "renk=3"]
    assert unknown(["dpfact", "walk"])
    assert unknown(["dpfact", "--version"]) == []
    assert unknown(["dpfact", "--revision"]) == ["--revision"]


# --- Pages that are followed ----------------------------------------------------------------------

FEW_ROUNDS = {
    f"-s privacy={mode}": f"-s privacy={mode} -s rounds=8" for mode in ("none", "paper")
}  # fmt: skip
"""Option that replaces 40 rounds. A page's own number comes later and takes precedence."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty folder in which the demo is small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(synthetic.PRESETS, "demo", SMALL)
    yield tmp_path
    pyplot.close("all")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_is_followed(page, home):
    names: dict[str, object] = {}
    change = PREPARED[page](home, names) if page in PREPARED else {}
    todo = [unit for unit in UNITS if unit.page == page and not listed(unit)]
    assert todo
    for unit in todo:
        text = unit.text
        for old, new in change.items():
            text = text.replace(old, new)
        if unit.python:
            exec(compile(text, f"{page}:{unit.line}", "exec"), names)
        else:
            follow(unit, text)
    if page in LEFT:
        LEFT[page](home, names)


def follow(unit: Unit, text: str) -> None:
    """Run a command of a page."""
    words = shlex.split(text)
    if words[0] in ("python", sys.executable):
        # A command that takes longer must be listed above.
        subprocess.run(["sh", "-ec", text], check=True, capture_output=True, timeout=PATIENCE)
        return
    assert words[0] == "dpfact", unit
    done = CliRunner().invoke(cli.app, words[1:])
    # 3: with so few patients, a run may learn nothing and say so.
    assert done.exit_code in (0, 3), (unit, done.output, done.exception)


# --- A page's prerequisites and results -----------------------------------------


def readme(home: Path, names: dict[str, object]) -> dict[str, str]:
    """Make a DataFrame of events, and tables of eICU."""
    write_events(home / "events.csv")
    names["events"] = pd.read_csv(home / "events.csv", parse_dates=["time"])
    write_eicu(home / "eicu")
    return {"PATH/TO/eicu": "eicu", **FEW_ROUNDS}


def write_events(path: Path) -> None:
    """Write events of the small demo's patients, as from a data warehouse."""
    rows = [
        (f"{site.name}-{patient}", vocabulary.name, vocabulary.codes[code], cell, site.name)
        for site in synthetic.synthetic(SMALL).sites
        for cell, (patient, *codes) in enumerate(site.tensor.indices)
        for vocabulary, code in zip(site.vocabularies, codes, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["patient", "mode", "code", "time", "site"])
    table["time"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(table["time"] % 100, "W")
    table.to_csv(path, index=False)


def write_eicu(folder: Path) -> None:
    """Write tables of eICU with sixty patients in two regions. Every third patient dies."""
    folder.mkdir()
    tables: dict[str, list[str]] = {
        "patient": [
            "patientunitstayid,patienthealthsystemstayid,uniquepid,hospitalid,unittype,"
            "hospitaladmitoffset,hospitaldischargestatus,hospitaldischargeyear,age"
        ],
        "treatment": ["treatmentid,patientunitstayid,treatmentoffset,treatmentstring"],
        "diagnosis": ["diagnosisid,patientunitstayid,diagnosisoffset,diagnosisstring,icd9code"],
    }
    for n in range(60):
        end = "Alive" if n % 3 else "Expired"
        tables["patient"].append(f"{n},{n},P{n},{56 + n % 2},MICU,0,{end},2014,60")
        for k in range(4):
            code = (n + k * k) % 7
            tables["treatment"].append(f"{4 * n + k},{n},{k},renal|dialysis|kind {code}")
            tables["diagnosis"].append(f"{4 * n + k},{n},{k},renal|failure {code},{580 + code}.1")
    tables["hospital"] = ["hospitalid,numbedscategory,region", "56,,Midwest", "57,,South"]
    for table, lines in tables.items():
        (folder / f"{table}.csv").write_text("\n".join([*lines, ""]))


def tutorial(home: Path, names: dict[str, object]) -> dict[str, str]:
    """Make tables of events and of eICU; the demo runs in one process."""
    write_sources(home)
    write_eicu(home / "eicu")
    (home / "sites.csv").write_text(SITES)
    (home / "labels.csv").write_text(LABELS)
    follow(UNITS[0], "dpfact run --out runs/demo")
    return {"PATH/TO/eicu": "eicu", **FEW_ROUNDS}


def after_tutorial(home: Path, names: dict[str, object]) -> None:
    """Check that the config repeats the run, and that the last block's file can be read."""
    assert (home / "runs" / "again" / "summary.json").is_file()
    assert (home / "runs" / "compare.html").is_file()
    assert SiteData.load(home / "north.npz").tensor.shape == (2, 2, 2)
    sites = Cohort.load(home / "data" / "own").sites
    assert [site.name for site in sites] == ["north", "south-east"]


def existing(home: Path, names: dict[str, object]) -> dict[str, str]:
    """Make the sites' files and the code lists, which the ServerApps load."""
    cohort = synthetic.synthetic(SMALL)
    cohort.save(home / "data")
    (home / "codes").mkdir()
    names["lists"] = cohort.vocabularies
    for codes in cohort.vocabularies:
        codes.save(home / "codes" / f"{codes.name}.json")
    return {"/srv": str(home), "40_000": "3_000"}  # fewer rounds


def after_existing(home: Path, names: dict[str, Any]) -> None:
    """Run the test on the page and both ServerApps, which leave a report."""
    names["test_run"](home / "test")
    for run, app in (
        ("phenotypes", names["main"]),
        ("legacy", ServerApp(server_fn=names["server_fn"])),
    ):
        own = {"allow-privacy": "patient", "max-epsilon": 4.0}
        nodes = [{"site": f"site-{n}", "data-path": f"data/site-{n}.npz",
                  "state-dir": f"{home}/{run}/{n}", **own} for n in range(1, 6)]  # fmt: skip
        app(InProcessGrid(names["app"], nodes), Context(1, 1, {}, RecordDict(), {}))
        names["DPFact"] = legacy.DPFact  # of the second block
        if run == "legacy":
            names["write_run"](names["make_strategy"](resume=True), names["lists"])
        assert (home / "runs" / run / "summary.json").is_file()


def spent(home: Path, names: dict[str, object]) -> dict[str, str]:
    """Make a hospital that has taken part in a run."""
    follow(UNITS[0], "dpfact run --out runs/demo")
    state = home / "runs" / "demo.sites"
    with Ledger(state / "site-1", create=False) as ledger:
        head = ledger.head()
    return {
        "/backup": str(home / "backup"),
        "/srv/dpfact/site/state/north": str(home / "restored"),
        "/srv/dpfact/site/state": f"{state} --site site-1",
        "12:9eb1...4cee": f"{head.rows}:{head.hash}",
    }  # fmt: skip


def lists(home: Path, names: dict[str, object]) -> dict[str, str]:
    """Make a public table of codes."""
    (home / "icd9.csv").write_text("code,description\n4019,hypertension\n41401,\n")
    return {"python ": f"{sys.executable} "}


def after_lists(home: Path, names: dict[str, object]) -> None:
    """Check the vocabulary file made from the table."""
    assert Vocabulary.load(home / "diagnoses.json").codes == ("4019", "41401")


PREPARED: dict[str, Callable[[Path, dict[str, object]], dict[str, str]]] = {
    "README.md": readme, "docs/tutorial.md": tutorial, "docs/how-to/ledger.md": spent,
    "docs/how-to/deploy.md": lists, "docs/how-to/existing-flower.md": existing,
}  # fmt: skip
LEFT: dict[str, Callable[[Path, dict[str, object]], None]] = {
    "docs/tutorial.md": after_tutorial, "docs/how-to/existing-flower.md": after_existing,
    "docs/how-to/deploy.md": after_lists,
}  # fmt: skip
