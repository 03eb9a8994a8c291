"""CPModel, compared with dense NumPy; matching, with pyttb and brute force; foreign tensors."""

import itertools
import math
import types

import numpy as np
import pytest
import pyttb
import scipy.sparse
import tensorly
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfact_flower.tensor.sparse as tensor_module
from dpfact_flower.errors import DataError
from dpfact_flower.tensor import SparseTensor, SquaredError, cp
from dpfact_flower.tensor.cp import CPModel, chance_cosines, factor_match_score, match_columns
from dpfact_flower.tensor.sparse import as_tensor
from tests.problems import dense_model, make_problem

SHAPES = [(7, 5), (6, 5, 4), (5, 4, 3, 2)]


def make(shape, rank=3, seed=0, signed=False):
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal if signed else rng.random
    return CPModel(tuple(draw((size, rank)) for size in shape))


def counts(shape):
    return make_problem(shape).tensor


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("signed", [False, True])
def test_norm_and_errors_agree_with_a_dense_reference_in_blocks_too(shape, signed, monkeypatch):
    model, tensor = make(shape, signed=signed), counts(shape)
    x, m = tensor.to_dense(), dense_model(model.factors)
    assert cp.norm_squared(model.factors) == pytest.approx((m**2).sum(), rel=1e-12)
    error = model.squared_error(tensor)
    rmse = error.rmse
    assert rmse.all_cells == pytest.approx(math.sqrt(np.mean((x - m) ** 2)), rel=1e-12)
    assert rmse.nonzeros == pytest.approx(math.sqrt(np.mean((x - m)[x > 0] ** 2)), rel=1e-12)
    fit = 1 - np.linalg.norm(x - m) ** 2 / np.linalg.norm(x) ** 2
    assert error.fit == pytest.approx(fit, rel=1e-12)
    monkeypatch.setattr(tensor_module, "_PART", 7)
    parts = model.squared_error(tensor)
    assert parts.nonzeros == pytest.approx(error.nonzeros, rel=1e-13)
    assert parts.all_cells == pytest.approx(error.all_cells, rel=1e-13)


@pytest.mark.parametrize("seed", range(8))
def test_a_perfect_model_has_no_error_and_never_less(seed):
    """No cell is zero, so the errors over all cells and over non-zeros differ only by rounding."""
    shape = (9, 4, 3)
    model = make(shape, seed=seed)
    index = np.argwhere(np.ones(shape))
    cells = dense_model(model.factors).ravel()
    error = model.squared_error(SparseTensor.from_coo(index, cells, shape))
    assert 0 < error.nonzeros <= error.all_cells <= 1e-12 * error.data  # the values are float32
    assert error.fit == pytest.approx(1.0)


def test_errors_of_sites_add_up_to_the_error_of_their_union():
    model, tensor = make((8, 5, 4)), counts((8, 5, 4))
    total = SquaredError(0.0, 0.0, 0.0, 0, 0)
    for rows in (np.arange(3), np.arange(3, 8)):
        part = CPModel((model.factors[0][rows], *model.features))
        total = total + part.squared_error(tensor.select_patients(rows))
    whole = model.squared_error(tensor)
    assert (total.cells, total.nnz) == (whole.cells, whole.nnz)
    for name in ("all_cells", "nonzeros"):
        assert getattr(total.rmse, name) == pytest.approx(getattr(whole.rmse, name), rel=1e-12)
    assert total.fit == pytest.approx(whole.fit, rel=1e-12)


def test_an_empty_tensor_has_sums_but_no_rmse():
    model = make((3, 4))
    empty = SparseTensor.from_coo(np.empty((0, 2), int), [], (3, 4))
    error = model.squared_error(empty)
    assert error.all_cells == pytest.approx(cp.norm_squared(model.factors))
    for name in ("rmse", "fit"):
        with pytest.raises(DataError, match="without non-zeros"):
            getattr(error, name)


def test_single_precision_factors_are_summed_in_double():
    rng, tensor = np.random.default_rng(1), counts((6, 5, 4))
    factors = tuple(rng.random((size, 3)).astype(np.float32) for size in tensor.shape)
    assert CPModel(factors).squared_error(tensor) == CPModel.of(*factors).squared_error(tensor)


def test_weights_and_unit_columns_agree_with_pyttb():
    model = make((6, 5, 4), signed=True)
    reference = pyttb.ktensor([np.array(f) for f in model.factors]).normalize()
    found = model.to_pyttb()
    np.testing.assert_allclose(found.weights, reference.weights, rtol=1e-12)
    for ours, theirs in zip(found.factor_matrices, reference.factor_matrices, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_with_unit_features_the_scale_is_the_patients():
    model = make((6, 5, 4), signed=True)
    scaled = model.with_unit_features()
    for factor in scaled.features:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(dense_model(scaled.factors), dense_model(model.factors), atol=1e-12)


def test_zero_columns_give_zero_and_not_nan():
    model = make((6, 5, 4))
    off = CPModel((model.factors[0] * [1, 0, 1], *model.features))
    assert off.weights[1] == 0
    assert np.isfinite(cp.unit_columns(off.factors[0])).all()
    assert factor_match_score(off, model) == pytest.approx(2 / 3)
    assert factor_match_score(off, off) == pytest.approx(2 / 3)
    nothing = CPModel(tuple(np.zeros_like(f) for f in model.factors))
    assert factor_match_score(nothing, nothing) == 0.0


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ((np.ones((3, 2)),), "at least 2 modes"),
        ((), "at least one"),
        ((np.ones((3, 2)), np.ones((3, 4))), "mode 1 has rank 4"),
        ((np.ones((3, 2)), np.ones(3)), r"mode 1 needs shape \(I, R\)"),
        ((np.ones((3, 0)), np.ones((3, 0))), r"mode 0 needs shape"),
        ((np.ones((3, 2)), np.full((3, 2), np.nan)), "mode 1 holds values that are not finite"),
        ((np.ones((3, 2)), [["a", "b"]]), "arrays of numbers"),
        (5, "sequence of arrays"),
    ],
)
def test_unusable_factors_are_refused(factors, message):
    with pytest.raises(DataError, match=message):
        CPModel(factors)


def test_shape_of_the_tensor_must_fit():
    with pytest.raises(DataError, match=r"shape \(6, 5, 4\) does not fit"):
        make((6, 5, 3)).squared_error(counts((6, 5, 4)))


def test_the_model_is_frozen_and_hides_its_values():
    given_factors = (np.full((3, 2), 0.123), np.full((4, 2), 0.456))
    model = CPModel(given_factors)
    with pytest.raises(ValueError, match="read-only"):
        model.factors[0][0, 0] = 1
    given_factors[0][0, 0] = 0.5  # the caller's own array stays writeable
    assert repr(model) == "CPModel(shape=(3, 4), rank=2)"


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    ours=st.integers(1, 4),
    theirs=st.integers(1, 4),
    signed=st.booleans(),
)
def test_matching_is_the_best_of_all_matchings(seed, ours, theirs, signed):
    a, b = make((4, 3, 5), ours, seed, signed), make((4, 3, 5), theirs, seed + 1, signed)
    products = np.prod(list(map(cp.column_cosines, a.factors, b.factors)), axis=0)
    small, large = min(ours, theirs), max(ours, theirs)
    wide = products if ours <= theirs else products.T
    best = max(
        sum(wide[i, j] for i, j in enumerate(chosen))
        for chosen in itertools.permutations(range(large), small)
    )
    match = match_columns(a, b)
    assert len(match.estimate) == small
    assert match.cosines.sum() == pytest.approx(best, abs=1e-12)
    assert factor_match_score(a.factors, b.factors) == pytest.approx(best / large, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_weights", [True, False])
def test_fms_agrees_with_pyttb_where_the_matching_is_clear(seed, with_weights):
    rng = np.random.default_rng(seed)
    # With sparse columns, no two components are alike, so greedy and Hungarian matching agree.
    model = CPModel(tuple(rng.random((n, 4)) * (rng.random((n, 4)) < 0.3) for n in (40, 30, 20)))
    order, scale = rng.permutation(4), rng.uniform(0.5, 2.0, 4)
    patients, *features = (f[:, order] * rng.uniform(0.8, 1.2, f.shape) for f in model.factors)
    other = CPModel((patients * scale, *features))
    theirs, _, _, _ = pyttb.ktensor([np.array(f) for f in other.factors]).score(
        pyttb.ktensor([np.array(f) for f in model.factors]), weight_penalty=with_weights
    )
    compared = (other, model) if with_weights else (other.factors, model.factors)
    score = factor_match_score(*compared)
    assert score == pytest.approx(theirs, rel=1e-10)
    assert score < 0.999
    match = match_columns(other, model)
    np.testing.assert_array_equal(order[match.estimate], match.truth)


@pytest.mark.parametrize(("modes", "others"), [(1, 9), (2, 1), (2, 4), (3, 4), (3, 9), (3, 30)])
def test_matches_by_chance_are_those_of_models_with_modes_rolled_apart(modes, others):
    rng = np.random.default_rng(others)
    ours, theirs = ([rng.random((9, rank)) ** 4 for _ in range(modes)] for rank in (5, others))
    shifts = range(1, min(others, 21)) if modes > 1 else ()
    found = {component: [] if shifts else [0.0] for component in range(5)}
    for shift in shifts:
        if (modes, 2 * shift) == (3, others):  # the first and the last mode of one component
            continue
        apart = [np.roll(factor, mode * shift, axis=1) for mode, factor in enumerate(theirs)]
        match = match_columns(ours, apart)
        for component, cosine in zip(match.estimate, match.cosines, strict=True):
            found[component].append(cosine)
    slow = [np.percentile(each, 95) for each in found.values()]
    np.testing.assert_allclose(chance_cosines(ours, theirs), slow)


def test_the_papers_formula_by_hand():
    """One component with cosines .6 and 1 and weights 10 and 4 has the score (1 - 6/10) * .6."""
    a = CPModel((np.array([[5.0], [0.0]]), np.array([[2.0]])))
    b = CPModel((np.array([[1.2], [1.6]]), np.array([[2.0]])))
    assert factor_match_score(a, b) == pytest.approx(0.4 * 0.6)
    assert factor_match_score(b, a) == pytest.approx(0.4 * 0.6)
    assert factor_match_score(a.factors, b.factors) == pytest.approx(0.6)


@pytest.mark.parametrize("other", [(np.ones((3, 2)), np.ones((4, 2))), (np.ones((4, 2)),)])
def test_factors_that_cannot_be_compared_are_refused(other):
    with pytest.raises(DataError, match=r"cannot compare modes of \[3\] and of"):
        factor_match_score((np.ones((3, 2)),), other)


CELLS = np.random.default_rng(0).poisson(0.6, (6, 5, 4)).astype(float)
WHERE, VALUES = np.argwhere(CELLS), CELLS[CELLS > 0]
OTHERS = [
    pyttb.sptensor(WHERE, VALUES[:, None], CELLS.shape), pyttb.tensor(CELLS),
    types.SimpleNamespace(coords=WHERE.T, data=VALUES, shape=CELLS.shape),  # like sparse.COO
    tensorly.tensor(CELLS), CELLS.tolist(),
]  # fmt: skip


@pytest.mark.parametrize("given", OTHERS, ids=lambda given: type(given).__module__)
def test_cells_are_those_given(given):
    np.testing.assert_array_equal(as_tensor(given).to_dense(), CELLS)


@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix", "coo_array", "lil_array"])
def test_a_matrix_of_scipy_has_two_modes(kind):
    matrix = getattr(scipy.sparse, kind)(CELLS[0])
    np.testing.assert_array_equal(as_tensor(matrix).to_dense(), CELLS[0])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([[1, np.nan]], "must be finite"),
        ([["a", "b"]], "need numbers"),
        ([1, 2], "at least 2 modes"),
        (scipy.sparse.csr_array([[0, -1.0]]), "must be non-negative"),
        (types.SimpleNamespace(**vars(OTHERS[2]), fill_value=1), "fill value"),
    ],
)
def test_what_is_no_tensor_of_counts_is_refused(given, says):
    with pytest.raises(DataError, match=says):
        as_tensor(given)


def test_our_own_stays_as_it_is_and_its_rows_are_patients():
    tensor = as_tensor(CELLS)
    assert as_tensor(tensor).fingerprint() == tensor.fingerprint()
    with pytest.raises(DataError, match="indices"):
        as_tensor(SparseTensor(tensor.indices + 10**6, tensor.values, tensor.shape))
    assert len(tensor) == 6
    for rows in (slice(1, 4), [4, 0], np.array([2]), CELLS.sum((1, 2)) > 11):
        np.testing.assert_array_equal(tensor[rows].to_dense(), CELLS[rows])
        np.testing.assert_array_equal(tensor[rows, ...].to_dense(), CELLS[rows])
    for rows in (0, [], [9], "a", ([0], [1])):
        with pytest.raises(DataError, match="patients: "):
            tensor[rows]


def test_a_model_is_the_same_in_pyttb_and_tensorly():
    own, there = make(CELLS.shape), make(CELLS.shape).to_tensorly()
    dense = dense_model(own.factors)
    np.testing.assert_allclose(own.to_pyttb().full().data, dense, rtol=1e-12)
    np.testing.assert_allclose(tensorly.cp_to_tensor(there), dense, rtol=1e-12)
    np.testing.assert_allclose(there.weights, own.weights)


def test_a_model_is_kept_in_a_file(tmp_path):
    own, path = make(CELLS.shape), tmp_path / "model.npz"
    own.save(path)
    assert path.stat().st_mode & 0o077 == 0
    for ours, theirs in zip(own.factors, CPModel.load(path).factors, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.savez(path, indices=np.zeros(1))
    with pytest.raises(DataError, match=r"model\.npz: lacks the array"):
        CPModel.load(path)
