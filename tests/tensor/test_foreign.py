"""Tensors and models of other libraries, there and back."""

import types

import numpy as np
import pytest
import pyttb
import scipy.sparse
import tensorly

from dpfact_flower.errors import DataError
from dpfact_flower.tensor.cp import CPModel
from dpfact_flower.tensor.sparse import as_tensor

CELLS = np.random.default_rng(0).poisson(0.6, (6, 5, 4)).astype(float)


def others():
    where = np.argwhere(CELLS)
    values = CELLS[tuple(where.T)]
    yield pyttb.sptensor(where, values[:, None], CELLS.shape)
    yield pyttb.tensor(CELLS)
    yield types.SimpleNamespace(coords=where.T, data=values, shape=CELLS.shape)  # as sparse.COO
    yield tensorly.tensor(CELLS)
    yield CELLS.tolist()


@pytest.mark.parametrize("given", others(), ids=lambda given: type(given).__module__)
def test_cells_are_those_given(given):
    np.testing.assert_array_equal(as_tensor(given).to_dense(), CELLS)


@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix", "coo_array", "lil_array"])
def test_a_matrix_of_scipy_has_two_modes(kind):
    matrix = getattr(scipy.sparse, kind)(CELLS[0])
    np.testing.assert_array_equal(as_tensor(matrix).to_dense(), CELLS[0])


def test_our_own_stays_as_it_is():
    tensor = as_tensor(CELLS)
    assert as_tensor(tensor) is tensor


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([[1, np.nan]], "must be finite"),
        ([[1, -1]], "must be non-negative"),
        ([["a", "b"]], "need numbers"),
        ([1, 2], "at least 2 modes"),
        (scipy.sparse.csr_array([[0, -1.0]]), "must be non-negative"),
    ],
)
def test_what_is_no_tensor_of_counts_is_refused(given, says):
    with pytest.raises(DataError, match=says):
        as_tensor(given)


def test_rows_are_patients():
    tensor = as_tensor(CELLS)
    assert len(tensor) == 6
    for rows in (slice(1, 4), [4, 0], np.array([2]), CELLS.sum((1, 2)) > 11):
        np.testing.assert_array_equal(tensor[rows].to_dense(), CELLS[rows])
        np.testing.assert_array_equal(tensor[rows, ...].to_dense(), CELLS[rows])
    for rows in (0, [], [9], "a", ([0], [1])):
        with pytest.raises(DataError, match="patients: "):
            tensor[rows]


def model():
    rng = np.random.default_rng(1)
    return CPModel(tuple(rng.random((size, 3)) for size in CELLS.shape))


def test_a_model_is_the_same_in_pyttb_and_tensorly():
    own = model()
    np.testing.assert_allclose(own.to_pyttb().full().data, own.to_dense(), rtol=1e-12)
    there = own.to_tensorly()
    np.testing.assert_allclose(tensorly.cp_to_tensor(there), own.to_dense(), rtol=1e-12)
    np.testing.assert_allclose(there.weights, own.weights)


def test_a_model_is_kept_in_a_file(tmp_path):
    own, path = model(), tmp_path / "model.npz"
    own.save(path)
    assert path.stat().st_mode & 0o077 == 0
    for ours, theirs in zip(own.factors, CPModel.load(path).factors, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.savez(path, indices=np.zeros(1))
    with pytest.raises(DataError, match=r"model\.npz: lacks the array"):
        CPModel.load(path)
