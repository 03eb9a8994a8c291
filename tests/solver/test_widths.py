"""Kernels are right whatever the width of the registers, and without AVX.

Here a few tests of each kernel, where the suite itself has not run them so. All of them, and other
processors as well: ``make test-widths``.
"""

from __future__ import annotations

import pytest

from dpfact_flower.machine.compiled import BITS
from tests.solver.widths import run, variants

FILES = ("tests/solver/kernels", "tests/solver/test_mttkrp.py", "tests/tensor/test_stack.py")
CHOSEN = """
    test_vector or test_model_values
    or test_visits_equal and 21 and 3.0 and 0.3
    or test_rows_are_swept and 20 and shape2 and inf
    or test_mttkrp_is_the_sum and float32 and (shape1 or shape2) and (20 or 130)
    or test_a_sweep and 20 or test_the_fit and 21 or test_squared_errors and 130
"""


HERE = [name for name in variants() if name.endswith(("bits", "x86-64")) and name != f"{BITS} bits"]


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("name", HERE)
def test_the_kernels_tests_pass_with(name):
    done = run(variants()[name], "-n", "0", "-k", " ".join(CHOSEN.split()), *FILES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
