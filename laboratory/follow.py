"""Follow README and docs literally, as a newcomer would: `make follow`.

The program clones the last commit, and times `make demo` in the clone. Then it runs every page from
top to bottom, with the commands in one shell and the Python blocks in one session. Each page has
its own folder. If a command names a file of the clone, the folder is a copy of the clone, and
otherwise it is empty. Files that a reader would have are added (`own`, `GIVEN`). The page's text is
unchanged, except that `PATH/TO/` is left out. Commands that cannot run on this machine are left out
by the rules in `LEFT_OUT`, and listed with the reason. The test suite runs the same commands on
small data.

The program takes a long time, and needs a package index. Open data are taken from $DPFACT_DATA. To
follow one page after a change: ``python -m laboratory.follow --clone CLONE docs/PAGE.md``.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from simulation.paper.datasets import open_data
from tests.data.readers.test_event_tables import LABELS, SITES
from tests.docs.pages import PATHS, ROOT, Unit, units
from tests.docs.test_data import write_sources
from tests.docs.test_extend import STAYS, blocks
from tests.docs.test_pages import write_eicu, write_events

LEFT_OUT = (
    (r"^git clone |^cd dpfact-flower$|^python3 -m venv ", "the newcomer has done that already"),
    (r"^sudo |/srv/|/var/lib/|^export PATH=/opt/", "needs root, or what root has set up above"),
    (r"\bdocker ", "needs Docker's daemon"),
    (r"^flower-superlink |^flwr supernode |^curl |s_client|^dpfact submit |^sh try/|site-1/site",
     "needs a SuperLink that keeps running; tests/runtime has one"),
    (r"^dpfact centre admit ", "asks a person; tests/runtime answers"),
    (r"postgresql://", "needs a database server; tests/data/readers has one"),
    (r"synpuf-1-to-20", "needs eighteen of SynPUF's twenty samples"),
    (r"^python -m (simulation|benchmarks|laboratory)\b|^make (test|paper|bench)$",
     "minutes to hours; the suite runs each of them on little"),
    (r" --read ann.csv ", "needs clinicians' answers; tests/evaluation/test_survey.py has some"),
    (r"^python -m pytest ", "needs pytest; the suite runs it"),
)  # fmt: skip
"""Patterns of commands, and the reasons that these commands cannot be followed here."""
OF_THE_CLONE = re.compile(r"^make |^\. |^pip wheel |constraints\.txt|\bsimulation/")
"""Commands that name files of a checkout."""
OPEN_DATA = {
    "eicu": "eicu_demo", "mimic3": "mimic3_demo", "mimic3_demo": "mimic3_demo",
    "cdm": "omop_synthea27nj", "synpuf": "synpuf/inpatient", "diabetes130": "diabetes130",
    "open-data": "", "D_ICD_PROCEDURES.csv": "mimic3_demo/D_ICD_PROCEDURES.csv",
    "NHDS10.PU.txt.bz2": "nhds2010/NHDS10.PU.txt.bz2",
}  # fmt: skip
"""The pages' names for open data, and the paths of these data in the open-data folder."""
EXTRAS = ".[simulation,data,report]"
_EICU = "dpfact data eicu eicu --by region --out data/eicu"
_SITES = "from dpfact_flower.data.synthetic import synthetic\nsites = synthetic('demo').sites\n"
GIVEN = {
    "README.md": ["import pandas\nevents = pandas.read_csv('events.csv', parse_dates=['time'])"],
    "docs/how-to/audit.md": [_EICU],
    "docs/how-to/clinical-reality.md": [
        "dpfact run --out runs/demo",
        "dpfact run --out runs/open -s privacy=none",
    ],
    "docs/how-to/data.md": [
        "import pandas\ndf = pandas.DataFrame({'mrn': [1], 'visit': [1], 'datum': ['31.12.2025'], "
        "'icd10': ['I21'], 'ops_code': ['8-837']})"
    ],
    "docs/how-to/deploy.md": [
        "import pandas\nfrom dpfact_flower import Vocabulary\n"
        "listed = pandas.read_csv('procedures.csv', dtype=str).code.unique()\n"
        "Vocabulary('procedures', tuple(listed)).save('procedures.json')"
    ],
    "docs/how-to/existing-flower.md": [_EICU],
    "docs/how-to/results.md": [f"{_SITES}sites[0].save('SITE.npz')"],
}
"""A page's prerequisites, as commands or Python to run before the page."""

SHELL = 'set -a; . "$STATE"; eval "$1"; code=$?; export -p > "$STATE"; exit $code'
"""A shell script that runs one command with the variables left by earlier commands."""
SESSION = """
import json, sys, traceback
answers, sys.stdout, names = sys.stdout, sys.stderr, {"__name__": "__main__"}
for line in sys.stdin:
    said = ""
    try:
        exec(compile(json.loads(line), "<page>", "exec"), names)
    except BaseException:
        said = traceback.format_exc()
    print(json.dumps(said), file=answers, flush=True)
"""


@dataclass
class Page:
    """The result of following a page."""

    name: str
    run: int = 0
    left_out: list[tuple[Unit, str]] = field(default_factory=list)
    failed: list[tuple[Unit, str]] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.run} | {len(self.failed)} | {len(self.left_out)} "
            f"| {self.seconds / 60:.1f} |"
        )


class Reader:
    """A simulated reader who follows a page in a folder, with a shell and a Python session."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home = home
        self.environment = environment | {"STATE": str(home.with_suffix(".state"))}
        Path(self.environment["STATE"]).touch()
        self.session: subprocess.Popen[str] | None = None

    def does(self, text: str, *, python: bool) -> str:
        """Run a command or a block of Python. Return the error, or an empty string."""
        return self._python(text) if python else self._shell(text)

    def _shell(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-c", SHELL, "page", text], cwd=self.home, env=self.environment, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        # With the paper's noise most runs find nothing, as the tutorial says, and exit with 3.
        well = (0, 3) if "privacy=paper" in text else (0,)
        return "" if done.returncode in well else f"{done.stdout}\nexit code {done.returncode}"

    def _python(self, text: str) -> str:
        if self.session is None:
            self.session = subprocess.Popen(
                ["bash", "-c", '. "$STATE"; exec python -c "$1"', "page", SESSION],
                cwd=self.home, env=self.environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        assert self.session.stdin is not None
        assert self.session.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(text), file=self.session.stdin, flush=True)
        answer = self.session.stdout.readline()
        return str(json.loads(answer)) if answer else "the Python session has ended"

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session.communicate()


def why_not(unit: Unit, home: Path, missing: set[str]) -> str | None:
    """Return the reason to leave out a unit, or None. Add the unit's output files to `missing`."""
    if unit.python:
        return None
    reason = next((why for sign, why in LEFT_OUT if re.search(sign, unit.text)), None)
    for name in re.findall(r"PATH/TO/([\w.-]+)", unit.text):
        if reason is None and not (home / name).exists():
            reason = f"no {name} at hand"
    for name in sorted(missing):
        if reason is None and re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w/.-])", unit.text):
            reason = "what it reads was left out"
    if reason is not None:
        missing.update(re.findall(r"--out (\S+)", unit.text))
        missing.update(f"${name}" for name in re.findall(r"^(\w+)=", unit.text))
    return reason


def follow(path: Path, home: Path, environment: dict[str, str]) -> Page:
    """Run the commands of a page, from top to bottom, in a folder."""
    page, missing, began = Page(path.relative_to(ROOT).as_posix()), set[str](), time.monotonic()
    with closing(Reader(home, environment)) as who:
        for text in GIVEN.get(page.name, ()):
            said = who.does(text, python=not text.startswith("dpfact "))
            assert not said, said
        for unit in units(path):
            reason = why_not(unit, home, missing)
            if reason is not None:
                page.left_out.append((unit, reason))
                continue
            said = who.does(unit.text.replace("PATH/TO/", ""), python=unit.python)
            page.run += 1
            if said:
                page.failed.append((unit, said))
    page.seconds = time.monotonic() - began
    return page


def own(home: Path) -> None:
    """Fill a folder with the files that a reader would have, or with small substitutes."""
    write_sources(home)
    write_eicu(home / "eicu")
    write_events(home / "events.csv")
    (home / "sites.csv").write_text(SITES)
    (home / "labels.csv").write_text(LABELS)
    (home / "icd9.csv").write_text("code,description\n4019,hypertension\n41401,\n")
    for name, place in OPEN_DATA.items():
        if (open_data() / place).exists():
            shutil.rmtree(home / name, ignore_errors=True)
            (home / name).symlink_to((open_data() / place).resolve())
    for file in (open_data() / "diabetes130").glob("*.csv.gz"):
        (home / file.name).symlink_to(file.resolve())


def folder_of(path: Path, clone: Path, top: Path) -> Path:
    """Make a new folder for following a page, with the reader's own files."""
    home = top / path.relative_to(ROOT).as_posix().replace("/", "-").replace(".", "-")
    todo = [unit for unit in units(path) if why_not(unit, home, set()) is None]
    if any(not unit.python and OF_THE_CLONE.search(unit.text) for unit in todo):
        left = shutil.ignore_patterns(".venv", "runs", ".git")
        shutil.copytree(clone, home, symlinks=True, ignore=left)
        (home / ".venv").symlink_to(clone / ".venv")
    else:
        home.mkdir()
    own(home)
    if home.name.endswith("extend-md"):
        (home / "stays.csv").write_text(STAYS)
        (home / "stays.sql").write_text(*blocks("A reader", "sql"))
    return home


def newcomer(clone: Path) -> dict[str, str]:
    """Return the environment of a user who has installed the clone and has no settings."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "FLWR_HOME": str(clone.with_name("flwr"))}


def first_report(clone: Path) -> None:
    """Measure the wall-clock and CPU time from `git clone` to the demo's report."""
    began = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    make(clone, "make demo")
    assert (clone / "runs" / "demo" / "report.html").is_file()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"From the clone to the first report: {(time.monotonic() - began) / 60:.1f} minutes, "
        f"{(used.ru_utime + used.ru_stime) / 60:.1f} of a processor"
    )


def make(clone: Path, command: str) -> None:
    """Run a command in the clone, and end the program if the command fails."""
    with closing(Reader(clone, newcomer(clone))) as who:
        said = who.does(command, python=False)
    if said:
        sys.exit(f"{command}\n{said}")


def tell(pages: Sequence[Page]) -> None:
    """Print what was left out and why, and what failed."""
    print("\nNot run:")
    for page in pages:
        for unit, reason in page.left_out:
            print(f"  {page.name}:{unit.line}: {unit.text.splitlines()[0][:70]}: {reason}")
    for page in pages:
        for unit, said in page.failed:
            print(f"\nFAILED {page.name}:{unit.line}: {unit.text}\n{said[-3000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Clone and install the package, and follow the pages. Return 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m laboratory.follow", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="default: README and all of docs")
    parser.add_argument("--clone", type=Path, help="where `make demo` has been run, to begin there")
    given = parser.parse_args(arguments)
    paths = [path.resolve() for path in given.pages] or [path for path in PATHS if units(path)]
    followed: list[Page] = []
    with tempfile.TemporaryDirectory(prefix="dpfact-follow-") as folder:
        top, whole = Path(folder).resolve(), False
        clone = (given.clone or top / "dpfact-flower").resolve()
        if given.clone is None:
            first_report(clone)
        print("\n| page | run | failed | not run | minutes |\n|---|---|---|---|---|", flush=True)
        for path in paths:
            if path.name != "README.md" and not whole:
                # Further packages that the pages' text asks readers to install.
                make(clone, f".venv/bin/pip install --quiet -c constraints.txt -e '{EXTRAS}'")
                whole = True
            followed.append(follow(path, folder_of(path, clone, top), newcomer(clone)))
            print(followed[-1], flush=True)
    tell(followed)
    return int(any(page.failed for page in followed))


if __name__ == "__main__":
    sys.exit(main())
