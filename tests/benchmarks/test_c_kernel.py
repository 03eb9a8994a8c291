"""The C kernel that speed is held against computes what the solver's kernels compute."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.c_kernel import CKernel, MissingCompilerError
from dpfact_flower.solver.kernels.choice import sgd_kernels
from dpfact_flower.solver.kernels.sgd import Step
from dpfact_flower.tensor.stack import stack_factors


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("rank", [5, 50])
def test_c_makes_the_same_steps(tmp_path, gamma, rank):
    rng = np.random.default_rng(0)
    sizes = (300, 20, 30)
    factors = [rng.random((n, rank), dtype=np.float32) * 0.5 for n in sizes]
    stack, anchors = stack_factors(factors), stack_factors(factors[1:])
    offsets = np.cumsum([0, *sizes[:2]])
    rows = np.stack([rng.integers(0, n, 3000) for n in sizes], axis=1) + offsets
    rows, counts = rows.astype(np.int32), rng.integers(1, 4, 3000).astype(np.float32)
    try:
        c = CKernel(stack.shape[1], tmp_path)
    except MissingCompilerError as error:
        pytest.skip(str(error))
    step = Step(eta=0.01, gamma=gamma)
    ours, theirs = stack_factors([stack]), stack_factors([stack])
    sgd_kernels("vector").visit(ours, anchors, rows, counts, step)
    c.visit(theirs, anchors, rows, counts, step)
    assert np.abs(ours - stack).max() > 0.05
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    tiny = np.array([1e-45], np.float32)
    assert tiny[0] * np.float32(1) > 0, "loading it must not change how floats work here"


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCompilerError, match="no C compiler"):
        CKernel(8, tmp_path)
