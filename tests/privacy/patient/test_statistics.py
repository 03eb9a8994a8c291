"""Patient mode's sums, compared with slow dense references, and the basis of their sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.patient import statistics
from dpfact_flower.privacy.patient.statistics import code_counts, cooccurrence, refinement
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.sparse import as_tensor

SIGMA_REAL = 2.0


@pytest.fixture(params=[(5, 6), (4, 3, 5)], ids=["three modes", "four modes"])
def sizes(request):
    return request.param


def counts(sizes, patients=12, seed=0):
    """Draw sparse counts. Patient 3 has no cell, and patient 4 has a single cell."""
    dense = np.random.default_rng(seed).poisson(0.25, (patients, *sizes)).astype(float)
    dense[:, *(0 for _ in sizes)] += 1
    dense[3] = 0
    dense[4] = 0
    dense[4, *(1 for _ in sizes)] = 7
    return dense


def factors_for(sizes, rank=3, seed=1):
    rng = np.random.default_rng(seed)
    made = (rng.gamma(0.5, 1.0, (size, rank)) + 0.01 for size in sizes)
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in made)


def test_no_patient_has_a_phenotype_of_zeros(sizes):
    """`auto_rank` pads the factors with such phenotypes."""
    factors, ridge, tensor = factors_for(sizes), np.full(3, 0.05), as_tensor(counts(sizes))
    wide = tuple(np.pad(factor, ((0, 0), (0, 2))) for factor in factors)
    given = {"bound": 0.1, "sigma": SIGMA_REAL}
    found = refinement(tensor, wide, 0, ridge=np.pad(ridge, (0, 2)), **given).total
    wanted = refinement(tensor, factors, 0, ridge=ridge, **given).total
    product, gram = np.split(found, [sizes[0] * 5])
    own_product, own_gram = np.split(wanted, [sizes[0] * 3])
    expected = np.pad(own_product.reshape(-1, 3), ((0, 0), (0, 2)))
    np.testing.assert_array_equal(product.reshape(-1, 5), expected)
    np.testing.assert_array_equal(gram[gram != 0], own_gram[own_gram != 0])
    assert wanted.any()


# --- Slow references: one patient's part, in real units -------------------------------------------


def slow_codes(cells):
    modes = range(cells.ndim)
    used = [cells.any(axis=tuple(m for m in modes if m != mode)) for mode in modes]
    stacked = np.concatenate(used).astype(float)
    return stacked / np.linalg.norm(stacked) if stacked.any() else stacked


def slow_pairs(cells):
    """Return the strict upper triangle, times sqrt(2), of the dense matrix with all blocks."""
    sizes = cells.shape
    ends = np.cumsum(sizes)
    matrix = np.zeros((ends[-1], ends[-1]))
    for mode, size in enumerate(sizes):
        rows = slice(ends[mode] - size, ends[mode])
        unfolded = np.moveaxis(cells, mode, 0).reshape(size, -1)
        block = unfolded @ unfolded.T
        np.fill_diagonal(block, 0)
        matrix[rows, rows] = block / (np.linalg.norm(block) or 1)
        for other in range(mode + 1, len(sizes)):
            columns = slice(ends[other] - sizes[other], ends[other])
            rest = tuple(m for m in range(len(sizes)) if m not in (mode, other))
            block = cells.sum(axis=rest)
            norm = math.sqrt(2) * np.linalg.norm(block)  # it occurs twice
            matrix[rows, columns] = 2 * block / (norm or 1)
            matrix[columns, rows] = matrix[rows, columns].T
    upper = math.sqrt(2) * matrix[np.triu_indices(len(matrix), 1)]
    return upper / np.linalg.norm(upper) if upper.any() else upper


def slow_refinement(cells, factors, mode, ridge, bound):
    rank, size = factors[0].shape[1], len(factors[mode])
    packed = size * rank + rank * (rank + 1) // 2
    if not cells.any():
        return np.zeros(packed)
    x = cells / np.linalg.norm(cells)
    on = np.isfinite(ridge)
    letters = "jkl"[: x.ndim]
    factors = [factor.astype(np.float64) for factor in factors]
    terms = ",".join(f"{c}r" for c in letters)
    columns = np.einsum(f"{terms}->{letters}r", *factors).reshape(-1, rank)
    design = np.vstack([columns, np.diag(np.sqrt(np.where(on, ridge, 0)))])[:, on]
    a = np.zeros(rank)
    a[on] = nnls(design, np.concatenate([x.ravel(), np.zeros(rank)]))[0]
    factors[mode] = np.ones_like(factors[mode])
    product = np.einsum(f"{letters},{terms}->{letters[mode]}r", x, *factors)
    places = np.triu_indices(rank)
    gram = np.where(np.equal(*places), 1, math.sqrt(2)) * np.outer(a, a)[places]
    part = np.concatenate([(product * a).ravel(), gram])
    norm = np.linalg.norm(part)
    return part * min(1, bound / norm) if norm else part


KINDS = ("codes", "start", "refine")
BOUND = 0.1
RIDGE = np.array([0.0, math.inf, 0.05])


def statistic_of(kind, tensor, sigma=SIGMA_REAL, factors=None, mode=1):
    if kind != "refine":
        return {"codes": code_counts, "start": cooccurrence}[kind](tensor, sigma=sigma)
    factors = factors or factors_for(tensor.feature_shape)
    return refinement(tensor, factors, mode, ridge=RIDGE, bound=BOUND, sigma=sigma)


def slow_of(kind, cells, mode=1):
    if kind != "refine":
        return {"codes": slow_codes, "start": slow_pairs}[kind](cells)
    return slow_refinement(cells, factors_for(cells.shape), mode, RIDGE, BOUND)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_is_that_of_the_slow_parts(kind, sizes):
    dense = counts(sizes)
    for mode in range(len(sizes) if kind == "refine" else 1):
        found = statistic_of(kind, as_tensor(dense), mode=mode)
        wanted = sum(slow_of(kind, cells, mode) for cells in dense)
        # Truncation loses less than a unit per patient, and coordinate descent stops at 1e-6.
        tolerance = len(dense) * found.grid + (1e-5 if kind == "refine" else 1e-8)
        np.testing.assert_allclose(found.total * found.grid, wanted, atol=tolerance)
        assert wanted.any()
    # An empty site gives zeros, not an error.
    assert not statistic_of(kind, SparseTensor.from_coo([], [], (3, *sizes))).total.any()


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_exactly_and_no_patient_changes_anothers(kind, sizes):
    dense = counts(sizes)
    whole = statistic_of(kind, as_tensor(dense)).total
    parts = [statistic_of(kind, as_tensor(cells[None])).total for cells in dense]
    np.testing.assert_array_equal(whole, np.sum(parts, axis=0))
    np.testing.assert_array_equal(whole, statistic_of(kind, as_tensor(dense[::-1])).total)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", ["2", "3", "40"])  # 40: more than the number of patients
def test_threads_change_no_bit(kind, sizes, threads, monkeypatch):
    tensor = as_tensor(counts(sizes, patients=30))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = statistic_of(kind, tensor).total
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    np.testing.assert_array_equal(statistic_of(kind, tensor).total, alone)


@pytest.mark.parametrize(("most", "parts"), [(11, 3), (10, 1)])
@pytest.mark.parametrize("patients", [1, 2, 40])
def test_the_number_of_a_sums_copies_tells_nothing_of_patients(most, parts, patients, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [*map(statistics.sum_threads, (4_000_000, 4_000_001))] == [3, 1]
    monkeypatch.setattr(statistics, "_MOST_SHARED", most)
    tensor, seen = as_tensor(np.ones((patients, 5, 6))), []
    statistics._summed(tensor, 11, lambda starts, _: seen.append(len(starts) - 1))
    assert len(seen) == statistics.sum_threads(11) == parts
    assert sum(seen) == patients
    assert max(seen) - min(seen) <= 1


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e-3, 1.0, 1e6, 1e30]),
    dense=st.booleans(), sigma=st.sampled_from([1e-2, 0.3, 1e3]),
)  # fmt: skip
def test_no_patient_moves_the_sum_by_more_than_the_sensitivity(kind, seed, size, dense, sigma):
    rng = np.random.default_rng(seed)
    cells = rng.gamma(0.3, size, (1, 5, 6)) * (rng.random((1, 5, 6)) < (1 if dense else 0.15))
    factors = tuple(
        (10.0 ** rng.uniform(-3, 6, f.shape) * rng.choice([-1, 1], f.shape)).astype(np.float32)
        for f in factors_for((5, 6))
    )
    found = statistic_of(kind, as_tensor(cells.astype(np.float32)), sigma, factors)
    units = math.sqrt(sum(int(value) ** 2 for value in found.total))  # exact before the root
    assert units <= found.sensitivity / found.grid


def part_of(indices, values, sizes):
    """Return one patient's part of the start, in real units."""
    tensor = SparseTensor.from_coo([[0, *cell] for cell in indices], values, (1, *sizes))
    found = cooccurrence(tensor, sigma=SIGMA_REAL)
    return found.total * found.grid


def test_the_start_of_one_patient_by_hand():
    # X = [[1, 2], [0, 3]], of codes a, b and c, d: off the diagonal, X X^T has 6 and X^T X has 2.
    found = part_of([(0, 0), (0, 1), (1, 1)], [1, 2, 3], (2, 2))
    cross = 2 * np.array([1, 2, 0, 3]) / math.sqrt(14)  # ac, ad, bc, bd
    wanted = np.array([1, *cross, 1]) / math.sqrt(1 + 4 + 1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), modes=st.integers(1, 4), spread=st.sampled_from([0, 3, 9]))
def test_a_patients_start_is_that_of_the_dense_matrices(seed, modes, spread):
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(1, 6, modes))
    dense = np.where(rng.random(sizes) < 0.4, 10.0 ** (spread * rng.random(sizes)), 0)
    dense = dense.astype(np.float32).astype(float)
    where = np.argwhere(dense)
    assume(sum(sizes) >= 2)
    if not len(where):
        where = np.zeros((1, modes), np.int64)
        dense[tuple(where.T)] = 1
    found = part_of(where, dense[tuple(where.T)], sizes)
    np.testing.assert_allclose(found, slow_pairs(dense), atol=1e-6)


@pytest.mark.parametrize(
    "values",
    [[3e38, 3e38, 3e38], [1e-45, 1e-45, 1e-45], [3e38, 1e-45, 1e-45], [1e9, 1.0, 1e9],
     [1e-45, 1e-20, 3e38]],
    ids=str,
)  # fmt: skip
def test_counts_of_any_size_have_a_start_of_norm_one(values):
    found = part_of([(0, 0), (0, 1), (1, 1)], np.float32(values), (2, 2))
    assert 0.99999 < np.linalg.norm(found) <= 1
    x = np.array(values, np.float32).astype(np.longdouble)
    cross = np.array([x[0], x[1], 0, x[2]])  # each block of one mode has a single pair
    wanted = np.array([1, *(2 * cross / np.sqrt((cross**2).sum())), 1]) / np.sqrt(6)
    np.testing.assert_allclose(found, wanted.astype(float), atol=1e-6)


def test_a_small_part_of_the_refinement_is_left_as_it_is(sizes):
    dense = counts(sizes)[:1]
    factors, ridge = factors_for(sizes), np.zeros(3)
    loose = refinement(as_tensor(dense), factors, 0, ridge=ridge, bound=1.0, sigma=SIGMA_REAL)
    wanted = slow_refinement(dense[0], factors, 0, ridge, 1.0)
    assert 0 < np.linalg.norm(wanted) < 1
    np.testing.assert_allclose(loose.total * loose.grid, wanted, atol=1e-5)


def test_a_patient_may_have_the_last_phenotype_alone():
    cells, identity = np.zeros((1, 4, 4), int), (np.eye(4, dtype=np.float32),) * 2
    cells[0, 3, 3] = 1
    found = refinement(as_tensor(cells), identity, 1, ridge=np.zeros(4), bound=1.0, sigma=1e3)
    wanted = slow_refinement(cells[0], identity, 1, np.zeros(4), 1.0)
    np.testing.assert_allclose(found.total * found.grid, wanted, atol=2 * found.grid)
    assert wanted.any()


@pytest.mark.parametrize(
    ("beside", "score", "wanted"),
    [(0.999, [1.999, 1.999], [1 + 0.999**59, 1 - 0.999**60]),  # 30 sweeps
     (0.5, [1.0, 1.0], [(2 + 0.5**20) / 3, (2 - 0.5**21) / 3]),  # 11 sweeps, until 1e-6
     (0.5, [1e-6, 1e-6], [0.75e-6, 0.625e-6]), (0.0, [1e-40, 0.9e-40], [0.0, 0.0])],
)  # fmt: skip
def test_loadings_are_fitted_until_they_settle_or_for_thirty_sweeps(beside, score, wanted):
    gram, (a, pull) = np.array([[1, beside, 0], [beside, 1, 0], [0, 0, 0]]), np.empty((2, 3))
    statistics._refit(np.array([*score, 1.0]), gram, np.zeros(3), a, pull)
    np.testing.assert_allclose(a, [*wanted, 0.0], rtol=1e-11)


@pytest.mark.parametrize("exponents", [(-45, 6), (-40, -38), (-19, -17)], ids=str)
@pytest.mark.parametrize("penalty", [0.0, 1e-310, 1e260])
@pytest.mark.parametrize("shape", [(4, 5), (3, 2, 2, 3)], ids=str)
def test_no_factors_put_a_patient_in_subnormal_numbers(shape, penalty, exponents, monkeypatch):
    """They take a hundred times as long, so a server could time the only patient who needs them."""
    for name in ("_refine", "_refit", "_products", "_joint_norm", "_add_part"):
        monkeypatch.setattr(statistics, name, getattr(statistics, name).py_func)
    rng = np.random.default_rng(3)
    factors = tuple(
        (rng.choice([-1, 1], (size, 3)) * 10.0 ** rng.uniform(*sorted(exponents), (size, 3)))
        .astype(np.float32) for size in shape
    )  # fmt: skip
    ridge = penalty * rng.random(3)
    tensor, given = as_tensor(counts(shape)), {"ridge": ridge, "bound": 0.1, "sigma": SIGMA_REAL}
    with np.errstate(under="raise"):  # a product or quotient that is subnormal, and not exact
        found = refinement(tensor, factors, 0, **given)
    assert np.abs(found.total).max() < found.sensitivity / found.grid * 12
    assert statistics._without_least(np.array([-0.2, -0.1, 0.1]), 0.2).tolist() == [-0.2, 0, 0]


def test_the_grid_follows_from_the_noise_and_values_are_scaled_before_they_are_truncated():
    found = statistic_of("start", as_tensor(counts((5, 6))[4:5]), sigma=SIGMA * 0.5)
    assert found.grid == 0.5
    # A single pair: 2 units, minus the safety margin, truncated.
    assert found.total.sum() == 1
    found = code_counts(as_tensor(np.ones((1, 1, 1, 1))), sigma=SIGMA / 3.5)
    assert found.total.tolist() == [2, 2, 2]  # 3.5 / sqrt(3) = 2.02


@pytest.mark.parametrize(("kind", "sensitivity"), [*zip(KINDS, (1, 1, BOUND), strict=True)])
def test_impossible_noise_is_refused(kind, sensitivity):
    tensor, least = as_tensor(counts((5, 6))), sensitivity * 2.0**-11 * (1 - 1e-9)
    statistic_of(kind, tensor, least)
    for sigma in (0, -1, math.nan, 1e-9, least * (1 - 1e-12)):
        with pytest.raises(SettingsError, match=f"^sigma: (must|{sigma:g} .* of {sensitivity:g}$)"):
            statistic_of(kind, tensor, sigma)


@pytest.mark.parametrize(
    ("sizes", "bound", "error", "text"),
    [((5, 6), 0.0, SettingsError, "bound"),
     *((sizes, 0.1, DataError, "do not match the tensor's") for sizes in ((5, 7), (5, 5), (5,)))],
)  # fmt: skip
def test_what_does_not_fit_is_refused(sizes, bound, error, text, monkeypatch):
    cells, factors = as_tensor(counts((5, 6))), factors_for(sizes)
    with pytest.raises(error, match=text):
        refinement(cells, factors, 0, ridge=np.zeros(3), bound=bound, sigma=1.0)
    monkeypatch.setattr(statistics, "MAX_PATIENTS", 12)
    code_counts(cells, sigma=1.0)
    with pytest.raises(DataError, match="more than 12 patients"):
        code_counts(as_tensor(counts((5, 6), patients=13)), sigma=1.0)
