"""Where machine code is kept and what tells it apart; for which registers it is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine import compiled

PACKAGE = Path(__file__).parents[2] / "dpfact_flower"

CODE = """
import numpy as np
from dpfact_flower.tensor import stack
values = stack.model_values(np.zeros((1, 2), np.int32), [np.full((1, 2), 3.0)] * 2)
hits = sum(stack._values_any.stats.cache_hits.values())
print(stack.__file__, values[0], hits, sep="|")
"""


@pytest.fixture
def installed(tmp_path):
    """A copy of the package that its user may not write to, and a home that may be theirs."""
    folder = tmp_path / "installed"
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    home = tmp_path / "home"
    home.mkdir()
    yield folder, home
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)


def plain_rights() -> list[str]:
    """What to put before a command so that permissions hold for it: root may write anywhere."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write anywhere, and setpriv is not there to take that away")
    return ["setpriv", "--bounding-set=-dac_override"]


def run(folder: Path, home: Path) -> tuple[float, int]:
    """Import the copy in a process; gives what its kernel computed, and its hits of the cache."""
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    environment |= {"HOME": str(home), "PYTHONPATH": str(folder)}
    environment.pop("XDG_CACHE_HOME", None)
    done = subprocess.run(
        [*plain_rights(), sys.executable, "-c", CODE],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where, value, hits = done.stdout.strip().split("|")
    assert Path(where).is_relative_to(folder)
    return float(value), int(hits)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="file permissions are POSIX")
@pytest.mark.parametrize("writable", [True, False], ids=["user's cache", "no cache at all"])
def test_a_package_that_may_not_be_written_to_works(installed, writable):
    folder, home = installed
    home.chmod(0o755 if writable else 0o555)
    assert run(folder, home) == (18.0, 0)
    assert run(folder, home) == (18.0, int(writable))
    assert not list(folder.rglob("*.nbi"))
    assert bool(list(home.rglob("*.nbi"))) is writable


WIDTHS = """
import numpy as np
from dpfact_flower.machine.compiled import WIDTH
from dpfact_flower.solver.kernels.vector import sgd
stack, cell = np.ones((2, 16), np.float32), np.zeros((1, 2), np.int32)
squares, inner, _ = sgd.squares(stack, cell, np.ones(1, np.float32), np.arange(3))
print(WIDTH, squares, inner, sum(sgd._squares.stats.cache_hits.values()), sep="|")
"""


@pytest.mark.process
def test_two_widths_that_share_a_cache_each_get_their_own_code(tmp_path):
    found = []
    for bits in ("128", "256", "128"):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), compiled.VARIABLE: bits}
        done = subprocess.run(
            [sys.executable, "-c", WIDTHS],
            cwd=PACKAGE.parent, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    assert found == ["4|225.0|16.0|0", "8|225.0|16.0|0", "4|225.0|16.0|1"]


@pytest.mark.parametrize(("features", "widest"), [("+avx2,+avx512f", 512), ("+avx2,+fma", 256)])
def test_the_processor_decides_where_the_environment_does_not(monkeypatch, features, widest):
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert compiled._register_bits() == widest


@pytest.mark.parametrize("bits", ["", "64", "512 bits", "1024"])
def test_a_width_that_there_is_not_is_refused(monkeypatch, bits):
    monkeypatch.setenv(compiled.VARIABLE, bits)
    with pytest.raises(SettingsError, match="DPFACT_REGISTER_BITS: must be 128, 256 or 512"):
        compiled._register_bits()


def test_512_bits_are_refused_where_the_processor_has_them_not(monkeypatch):
    monkeypatch.setenv(compiled.VARIABLE, "512")
    monkeypatch.setattr(config, "CPU_FEATURES", "+avx2,+fma")
    with pytest.raises(SettingsError, match="512 bits need a processor with AVX-512"):
        compiled._register_bits()
    monkeypatch.setattr(config, "CPU_FEATURES", "+avx2,+avx512f")
    assert compiled._register_bits() == 512
