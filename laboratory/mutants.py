"""Test the tests with mutants: ``python -m laboratory.mutants [--sample N] [--seed N] [FOLDER]``.

cosmic-ray changes one token of the package (a number by one, an operator, a comparison, ``and``,
``not``, a decorator, a loop, a caught exception). A mutant is tested first by the tests that run
the changed lines, and then by the other tests in the same files, which may share fixtures. The
tests that run a line are unknown if the line is compiled, if it runs only on import, or if `TESTS`
lacks its folder's tests. The mutant is then tested by the folder's tests and by all of `TESTS`. A
mutant is noticed if a test fails, hangs or crashes. The program changes only a temporary copy of
the checkout.

The same seed and the same code give the same sample. A line with an addition has eleven mutants,
most of them obvious, so the program draws at most one mutant from each place. Mutants that differ
only in annotations or log lines, or are not valid programs, are not drawn. Survivors that
mutants.toml explains are not counted. The exit code is 1 if fewer than 95 % of the other mutants
are noticed. Slow tests run only if the fast ones pass. Tests that start processes do not run.
"""

import argparse
import ast
import difflib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome
from coverage import CoverageData

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = Path("dpfact_flower")
FOLDERS = ("privacy", "site", "server")
LEAST = 0.95
COMPILED = PACKAGE / "privacy"
"""Folder whose mutants each clear numba's cache, because a kernel is not recompiled when a kernel
that it calls in another module changes."""
TESTS = (
    "test_values.py",
    *(
        f"{folder}/**/test_*.py"
        for folder in ("site", "server", "privacy", "wire", "audit", "estimation")
    ),
    "test_*.py",
    "cli/test_site.py",
)
"""Tests whose covered lines are recorded. If all meet a mutant, its own folder's come first."""
EXPLAINED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["line"]
_COPIED = ("dpfact_flower", "simulation", "tests", "laboratory", "docs", "pyproject.toml",
           "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "codemeta.json")  # fmt: skip
_RUN = "import os, sys, pytest; code = pytest.main(); sys.stdout.flush(); os._exit(code % 5)"
"""pytest without the final wait for threads, which a mutant may keep from ending. If the marks
select no test, pytest's exit code is 5, which counts as a success here."""
_NOT_MET = "nightly or process or ray or deployment"
_FAST, _SLOW = f"not (slow or {_NOT_MET})", f"slow and not ({_NOT_MET})"
_COVERAGE = ("--cov=dpfact_flower", "--cov-context=test", "--cov-report=")
"""Records the tests that run each line. Compiled lines have no tests in this record."""
_COVERING = Path(".covering")
"""File with the names of the tests that run a mutant's lines."""
_HANG_TIMES, _HANG_SECONDS = 6, 60
"""A test hangs if it takes this many times as long as the longest test without a mutant, and at
least this many seconds. Other work on the machine must not count as a hang."""


class Mutant(NamedTuple):
    """A change of one token. The changed lines are stored without their indentation."""

    spec: MutationSpec
    before: str
    after: str

    @property
    def place(self) -> str:
        """The mutant's path and line."""
        return f"{self.spec.module_path}:{self.spec.start_pos[0]}"

    @property
    def explained(self) -> str:
        """The reason why the mutant may survive, or an empty string."""
        path = self.spec.module_path.relative_to(PACKAGE).as_posix()
        for line in EXPLAINED:
            known = (path, self.before) == (line["path"], line["before"])
            if known and self.after in line.get("after", [self.after]):
                return line["why"]
        return ""


# --- Which mutants there are ----------------------------------------------------------------------


def sample(root: Path, folders: Sequence[Path], size: int, seed: int) -> tuple[list[Mutant], int]:
    """Return drawn mutants, and the number of places in the code that can be mutated."""
    modules = sorted(
        p.relative_to(root) for folder in folders for p in (root / folder).rglob("*.py")
    )
    with use_db(root / "mutants.sqlite", WorkDB.Mode.create) as session:
        init(modules, session, {})
        specs = [mutation for item in session.work_items for mutation in item.mutations]
    places = defaultdict(list)
    # The order of the session's mutants is arbitrary.
    key = ("module_path", "start_pos", "operator_name", "occurrence")
    for spec in sorted(specs, key=lambda spec: [getattr(spec, name) for name in key]):
        places[spec.module_path, spec.start_pos].append(spec)
    rng, drawn = random.Random(seed), list[Mutant]()
    order = sorted(places)
    rng.shuffle(order)
    for place in order:
        if len(drawn) == size:
            break
        rng.shuffle(places[place])
        drawn += [mutant for spec in places[place] if (mutant := mutant_of(root, spec))][:1]
    return sorted(drawn, key=lambda m: (m.spec.module_path, m.spec.start_pos)), len(order)


def mutant_of(root: Path, spec: MutationSpec) -> Mutant | None:
    """Return the mutant, or None if it is invalid or equivalent to the module."""
    source = (root / spec.module_path).read_text(encoding="utf-8")
    operator = get_operator(spec.operator_name)(**spec.operator_args)
    try:
        mutated = mutate_code(source, operator, spec.occurrence)
    except AttributeError:  # cosmic-ray cannot replace a dotted name, such as `ssl.SSLError`
        return None
    if mutated is None or says_the_same(source, mutated):
        return None
    lines = difflib.unified_diff(source.splitlines(), mutated.splitlines(), n=0, lineterm="")
    changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    before, after = (
        "\n".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+"
    )
    return Mutant(spec, before, after)


def says_the_same(source: str, mutated: str) -> bool:
    """Return True if two modules run the same code or if the second is not a valid program.

    Annotations, log calls, compiling decorators and ``/`` or ``*`` between parameters are ignored.
    A program is not valid either if Python warns of it, as of ``is`` beside a literal.
    """
    try:
        with warnings.catch_warnings(action="error", category=SyntaxWarning):
            compile(mutated, "mutated", "exec")
        one, two = (ast.dump(_Bare().visit(ast.parse(text))) for text in (source, mutated))
    except SyntaxError:
        return True
    return one == two


class _Bare(ast.NodeTransformer):
    """Removes everything that `says_the_same` ignores."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        node.defaults = [value for value in (*node.defaults, *node.kw_defaults) if value]
        node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.decorator_list = [d for d in node.decorator_list if "compiled" not in ast.unparse(d)]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Attribute(value=ast.Name("_logger")):
                return ast.Constant(None)
        return self.generic_visit(node)


# --- The tests run on a mutant --------------------------------------------------------------------


def met_by(module: Path) -> tuple[list[Path], list[Path]]:
    """Return the tests of a module's folder (the module's own first), and all other tests."""
    folder = Path("tests") / module.parent.relative_to(PACKAGE)
    own = sorted(folder.glob("test_*.py"), key=lambda path: path.stem != f"test_{module.stem}")
    return own, [path for path in everything() if path not in own]


def everything() -> list[Path]:
    """Return each file of `TESTS` once, without the test of `EXPLAINED`, which notices anything."""
    found = (path for pattern in TESTS for path in sorted(Path("tests").glob(pattern)))
    return [path for path in dict.fromkeys(found) if path.name != "test_laboratory.py"]


def command(tests: Sequence[str | Path], hang: float, marked: str = _FAST) -> str:
    """Return a command that runs tests until one fails or takes more than `hang` seconds."""
    return shlex.join([
        sys.executable, "-c", _RUN, "-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider",
        "-p", "no:xdist", "--hypothesis-seed=0", "--basetemp=.tests", "--junitxml=.tests.xml",
        "-o", f"faulthandler_timeout={hang:.0f}", "-o", "faulthandler_exit_on_timeout=true",
        "-m", marked, *map(str, tests),
    ])  # fmt: skip


class Bench:
    """A copy of the checkout that is mutated and tested, and an unchanged copy of the package.

    File times are kept, so that numba's cache stays valid.
    """

    def __init__(self, folder: Path) -> None:
        self.copy, self._whole = folder / "checkout", folder / "whole"
        self.copy.mkdir()
        for name in _COPIED:
            put = shutil.copytree if (CHECKOUT / name).is_dir() else shutil.copy2
            put(CHECKOUT / name, self.copy / name)
        os.chdir(self.copy)
        # Subprocesses of tests must not find the installed package either.
        os.environ["PYTHONPATH"] = str(self.copy)

    def measure(self) -> float:
        """Run all tests without a mutant to fill the cache, and return the time in seconds."""
        began = time.perf_counter()
        tests = shlex.split(command(everything(), 3600, f"({_FAST}) or ({_SLOW})"))
        run = subprocess.run([*tests, *_COVERAGE], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"the tests fail without a mutant:\n{run.stdout[-2000:]}")
        cases = ElementTree.parse(".tests.xml").iter("testcase")
        longest = max(float(case.get("time", 0)) for case in cases)
        self._hang = max(_HANG_SECONDS, _HANG_TIMES * longest)
        self._most = self._hang + _HANG_TIMES * (time.perf_counter() - began)
        self._record = CoverageData()
        self._record.read()
        shutil.copytree(PACKAGE, self._whole)
        return time.perf_counter() - began

    def noticed(self, mutant: Mutant) -> str:
        """Return the test that notices a mutant, "a hang or a crash", or an empty string."""
        path = mutant.spec.module_path
        compiled = path.is_relative_to(COMPILED)
        if compiled:
            for cached in COMPILED.rglob("*.nb[ic]"):
                cached.unlink()
        try:
            covering = self._covering(mutant)
            _COVERING.write_text("\n".join(covering), encoding="utf-8")
            files = dict.fromkeys(test.partition("::")[0] for test in covering)
            tests = ([f"@{_COVERING}"], [*files]) if covering else met_by(path)
            meetings = (self._meet(mutant, t, m) for m in (_FAST, _SLOW) for t in tests if t)
            return next(filter(None, meetings), "")
        finally:
            folder = COMPILED if compiled else path.parent
            shutil.rmtree(folder)
            shutil.copytree(self._whole / folder.relative_to(PACKAGE), folder)
            shutil.rmtree(".hypothesis", ignore_errors=True)

    def _covering(self, mutant: Mutant) -> list[str]:
        """Return tests that run a mutant's lines, those of its folder first; empty if unknown."""
        path, spec = mutant.spec.module_path, mutant.spec
        if not set(met_by(path)[0]) <= set(everything()):
            return []
        tests_of = self._record.contexts_by_lineno(str(path.resolve()))
        lines = range(spec.start_pos[0], spec.end_pos[0] + 1)
        names = (test.rpartition("|")[0] for line in lines for test in tests_of.get(line, ()))
        found = set(filter(None, names))
        own = str(Path("tests") / path.parent.relative_to(PACKAGE))
        return sorted(found, key=lambda test: (not test.startswith(own), test))

    def _meet(self, mutant: Mutant, tests: Sequence[str | Path], marked: str) -> str:
        run = command(tests, self._hang, marked)
        result = mutate_and_test([mutant.spec], run, self._most)
        if result.test_outcome is TestOutcome.SURVIVED:
            return ""
        if result.test_outcome is not TestOutcome.KILLED:
            raise RuntimeError(f"{mutant.place}: {result.output}")
        lines = (result.output or "").splitlines()
        named = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return named[0].split(" - ")[0].split(maxsplit=1)[1] if named else "a hang or a crash"


@contextmanager
def bench() -> Iterator[Bench]:
    """Yield a temporary bench."""
    before = Path.cwd()
    with TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        try:
            yield Bench(Path(folder).resolve())
        finally:
            os.chdir(before)


def main() -> int:
    """Draw and test mutants. Print each result, the survivors, and how many were noticed."""
    parser = argparse.ArgumentParser(prog="python -m laboratory.mutants", description=__doc__)
    parser.add_argument(
        "folders", nargs="*", default=FOLDERS, metavar="FOLDER", help="folder of the package"
    )
    parser.add_argument("--sample", type=int, default=60, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the copy is deleted
    noticed, alive = 0, list[Mutant]()
    with bench() as place:
        folders = [PACKAGE / folder for folder in asked.folders]
        mutants, places = sample(place.copy, folders, asked.sample, asked.seed)
        print(f"{len(mutants)} mutants of {places} places, seed {asked.seed}", flush=True)
        print(f"the tests pass without a mutant, in {place.measure():.0f} s", flush=True)
        for mutant in mutants:
            by = place.noticed(mutant)
            noticed += bool(by)
            alive += [] if by else [mutant]
            what = mutant.spec.operator_name.partition("/")[2]
            print(f"{mutant.place}  {what}  {by or 'LIVES'}", flush=True)
    for mutant in alive:
        print(f"\n{mutant.place} lives: {mutant.explained or 'NOT EXPLAINED'}")
        print(f"- {mutant.before}\n+ {mutant.after}")
    counted = noticed + sum(not mutant.explained for mutant in alive)
    share = noticed / counted if counted else 1.0
    print(f"\n{noticed} of {counted} noticed ({100 * share:.1f} %)")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
