"""The C kernel with which speed is compared computes the same values as the solver's kernels."""

import numpy as np
import pytest

from benchmarks.c_kernel import CKernel, MissingCompilerError
from dpfact_flower.solver.kernels import sgd
from dpfact_flower.solver.kernels.sgd import Step
from dpfact_flower.tensor.stack import stack_factors
from tests.problems import assert_moved, visit_one_by_one


@pytest.mark.process
@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("rank", [5, 50])
def test_c_makes_the_same_steps(tmp_path, gamma, rank):
    rng = np.random.default_rng(0)
    sizes = (300, 20, 30)
    factors = [rng.random((n, rank), dtype=np.float32) * 0.5 for n in sizes]
    stack, anchors = stack_factors(factors), stack_factors(factors[1:])
    offsets = np.cumsum([0, *sizes[:2]])
    cells = np.stack([rng.integers(0, n, 60) for n in sizes], axis=1)
    rows, counts = (cells + offsets).astype(np.int32), rng.integers(1, 4, 60).astype(np.float32)
    try:
        c = CKernel(stack.shape[1], tmp_path)
    except MissingCompilerError as error:
        pytest.skip(str(error))
    step = {"eta": 0.05, "gamma": gamma, "clip": 0.0, "floor": 0.0}
    expected = visit_one_by_one(factors, factors[1:], cells, counts, **step)
    for visit in (c.visit, sgd.visit):
        found = stack_factors([stack])
        visit(found, anchors, rows, counts, Step(eta=0.05, gamma=gamma))
        assert_moved(np.split(found[:, :rank], offsets[1:]), factors, expected)
    tiny = np.array([1e-45], np.float32)
    assert tiny[0] * np.float32(1) > 0, "loading it must not change how floats work here"


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCompilerError, match="no C compiler"):
        CKernel(8, tmp_path)
