"""The place, the names and the register width of machine code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine import compiled

PACKAGE = Path(__file__).parents[2] / "dpfact_flower"


def test_where_nothing_can_be_cached_kernels_are_compiled_in_every_process(monkeypatch):
    njit = compiled.njit

    def uncached(*, cache=False, **options):
        if cache:
            raise RuntimeError("no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "njit", uncached)
    assert compiled.compiled()(lambda x: 2.0 * x)(9.0) == 18.0


WIDTHS = """
import numpy as np
from dpfact_flower.machine.compiled import WIDTH
from dpfact_flower.solver.kernels import sgd
stack, cell = np.ones((2, 16), np.float32), np.zeros((1, 2), np.int32)
squares, inner, _ = sgd.squares(stack, cell, np.ones(1, np.float32), np.arange(3))
print(WIDTH, squares, inner, sum(sgd._squares.stats.cache_hits.values()), sep="|")
"""


@pytest.mark.nightly
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


@pytest.mark.parametrize("bits", ["", "64", "512 bits", "1024", "512"])
def test_a_width_that_there_is_not_is_refused(monkeypatch, bits):
    monkeypatch.setenv(compiled.VARIABLE, bits)
    monkeypatch.setattr(config, "CPU_FEATURES", "+avx2,+fma")
    with pytest.raises(SettingsError, match="DPFACT_REGISTER_BITS: must be 128, 256 or"):
        compiled._register_bits()
