"""A mutant's trial: which tests it meets, in a copy of the checkout.

The package is compiled by numba and cached by a file's time and size, and a kernel that calls
another module's is not compiled anew when that one changes. So what is compiled from `privacy` is
forgotten for each mutant of it; `site` and `server` compile nothing, and nothing below imports
them (tests/test_house.py).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import TestOutcome

from tests.mutants.sample import Mutant

PACKAGE = Path("dpfact_flower")
COMPILED = PACKAGE / "privacy"
TESTS = tuple(
    Path("tests") / room
    for room in ("test_values.py", "site", "server", "privacy", "wire", "audit")
)
"""Met by every mutant that its own room's tests leave alive; in this order."""
_COPIED = ("dpfact_flower", "simulation", "tests", "docs", "pyproject.toml", "README.md", "LICENSE")
_RUN = "import os, sys, pytest; code = pytest.main(); sys.stdout.flush(); os._exit(code)"
"""pytest, without the wait at the end for threads that a mutant keeps from ending."""
_TIMES, _LEAST = 6, 60
"""A test hangs that takes so many times the longest one's time without a mutant, and not less than
so many seconds: other work on the machine must not pass for a mutant."""


@dataclass(frozen=True)
class Verdict:
    """What came of a mutant.

    Attributes
    ----------
    noticed : str or None
        By what: a test, or "a hang or a crash"; None for a survivor.
    seconds : float
    diff : str
    """

    noticed: str | None
    seconds: float
    diff: str = ""


@contextmanager
def copied(checkout: Path) -> Iterator[Path]:
    """A copy to mutate, which is gone afterwards; the working directory meanwhile.

    Times are kept, so that what numba has cached still counts.
    """
    before = Path.cwd()
    with TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder).resolve() / "checkout"
        copy.mkdir()
        for name in _COPIED:
            put = shutil.copytree if (checkout / name).is_dir() else shutil.copy2
            put(checkout / name, copy / name)
        os.chdir(copy)
        # Subprocesses of tests, too, must not find the package where it is installed.
        os.environ["PYTHONPATH"] = str(copy)
        try:
            yield copy
        finally:
            os.chdir(before)


def own_tests(module: Path) -> tuple[Path, ...]:
    """Tests that mirror a module: its own file first, if there is one, then those of its folder."""
    folder = Path("tests") / module.parent.relative_to(PACKAGE)
    own = folder / f"test_{module.stem}.py"
    rest = sorted(path for path in folder.glob("test_*.py") if path != own)
    return ((own,) if own.exists() else ()) + tuple(rest)


def other_tests(module: Path) -> tuple[Path, ...]:
    """All tests of `TESTS` that `own_tests` leaves out."""
    own = set(own_tests(module))
    return tuple(path for path in all_tests() if path not in own)


def all_tests() -> list[Path]:
    """The files of `TESTS`."""
    return [
        path
        for room in TESTS
        for path in ([room] if room.is_file() else sorted(room.rglob("test_*.py")))
    ]


@dataclass(frozen=True)
class Pristine:
    """A checkout whose files are as they were, and how long its tests take.

    Attributes
    ----------
    folder : Path
    seconds : float
        All tests of `TESTS`.
    longest : float
        The longest test of these, in seconds.
    """

    folder: Path
    seconds: float
    longest: float


def command(tests: Sequence[Path], hang: float) -> str:
    """The tests up to the first that fails, or takes more than `hang` seconds.

    With the same examples of hypothesis every time.
    """
    return shlex.join([
        sys.executable, "-c", _RUN, "-x", "-q", "--tb=no", "--no-header",
        "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", "--basetemp=.tests",
        "-o", f"faulthandler_timeout={hang:.0f}", "-o", "faulthandler_exit_on_timeout=true",
        "--junitxml=.tests.xml", "-m", "not slow and not ray and not deployment", *map(str, tests),
    ])  # fmt: skip


@contextmanager
def pristine(copy: Path) -> Iterator[Pristine]:
    """A second copy, taken when the tests have passed and what they compiled is cached.

    Raises
    ------
    RuntimeError
        If they do not pass: then they notice everything.
    """
    began = time.perf_counter()
    run = subprocess.run(
        shlex.split(command(TESTS, hang=3600)), capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"the tests fail without a mutant:\n{run.stdout[-2000:]}")
    seconds = time.perf_counter() - began
    longest = max(float(c.get("time", 0)) for c in ElementTree.parse(".tests.xml").iter("testcase"))
    with TemporaryDirectory(prefix="mutants-") as folder:
        shutil.copytree(copy / PACKAGE, Path(folder) / PACKAGE)
        yield Pristine(Path(folder), seconds, longest)


def trial(mutant: Mutant, whole: Pristine) -> Verdict:
    """Put a mutant before its own tests, and if it lives before the others."""
    began = time.perf_counter()
    verdict = Verdict(None, 0.0)
    _forget(mutant)
    try:
        for tests in (own_tests(mutant.path), other_tests(mutant.path)):
            if tests and verdict.noticed is None:
                verdict = _met(mutant, tests, whole)
    finally:
        _put_back(mutant, whole.folder)
    return replace(verdict, seconds=time.perf_counter() - began)


def _met(mutant: Mutant, tests: Sequence[Path], whole: Pristine) -> Verdict:
    hang = max(_LEAST, _TIMES * whole.longest)
    result = mutate_and_test([mutant.spec], command(tests, hang), hang + _TIMES * whole.seconds)
    if result.test_outcome is TestOutcome.SURVIVED:
        return Verdict(None, 0.0, result.diff or "")
    if result.test_outcome is not TestOutcome.KILLED:
        raise RuntimeError(f"{mutant.path}: {result.output}")
    lines = (result.output or "").splitlines()
    named = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    by = named[0].split(" - ")[0].split(maxsplit=1)[1] if named else "a hang or a crash"
    return Verdict(by, 0.0, result.diff or "")


def _forget(mutant: Mutant) -> None:
    if mutant.path.is_relative_to(COMPILED):
        for path in COMPILED.rglob("*.nb[ic]"):
            path.unlink()


def _put_back(mutant: Mutant, whole: Path) -> None:
    """The module with its time, and what was compiled from it."""
    folder = COMPILED if mutant.path.is_relative_to(COMPILED) else mutant.path.parent
    shutil.rmtree(folder)
    shutil.copytree(whole / folder, folder)
    shutil.rmtree(".hypothesis", ignore_errors=True)
