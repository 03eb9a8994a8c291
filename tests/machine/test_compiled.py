"""The place and the register width of machine code."""

import runpy

import pytest
from numba import config

from dpfact_flower.machine import compiled


def test_where_nothing_can_be_cached_kernels_are_compiled_in_every_process(monkeypatch):
    njit = compiled.njit

    def uncached(*, cache=False, **options):
        if cache:
            raise RuntimeError("no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "njit", uncached)
    assert compiled.compiled()(lambda x: 2.0 * x)(9.0) == 18.0


@pytest.mark.parametrize(
    ("features", "width"), [("+avx2,+avx512f", 16), ("+avx2,-avx512f", 8), ("", 8)]
)
def test_the_processor_decides_the_width_of_registers(monkeypatch, features, width):
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    found = runpy.run_path(compiled.__file__)
    assert (found["WIDTH"], found["REGISTERS"]) == (width, 2 * width)
