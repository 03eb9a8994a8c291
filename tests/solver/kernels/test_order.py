"""The order of a pass: every entry once, zero cells by probability, random places."""

import numpy as np
import pytest
from scipy import stats

from dpfact_flower.solver.kernels.order import _UNIFORM, random_number, visits
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.stack import row_offsets, stack_factors
from tests.problems import dense_model, make_problem

SHAPES = [(7, 5), (7, 5, 6), (5, 4, 3, 6)]


def drawn(tensor: SparseTensor, zeros: int, rng: np.random.Generator, model):
    """Return the cells and counts of a pass, block after block."""
    blocks = list(visits(tensor, zeros, rng, model))
    rows = np.concatenate([rows for rows, _ in blocks])
    return rows - row_offsets(tensor.shape)[:-1], np.concatenate([counts for _, counts in blocks])


def chances(factors) -> np.ndarray:
    """Return the probability of every cell of a dense tensor, from the definition."""
    model = dense_model([np.abs(factor) for factor in factors])
    return _UNIFORM / model.size + (1 - _UNIFORM) * model / model.sum()


@pytest.mark.parametrize("shape", [*SHAPES, (1300, 5, 6)])
def test_every_entry_is_visited_once_and_zero_cells_beside(shape):
    case = make_problem(shape, density=0.1, signed=True)
    tensor = case.tensor
    model = stack_factors(case.factors)[:, : case.rank]
    cells, counts = drawn(tensor, 2000, np.random.default_rng(0), model)
    entries = cells[counts > 0]
    order = np.lexsort(entries.T[::-1])
    np.testing.assert_array_equal(entries[order], tensor.indices)
    np.testing.assert_array_equal(counts[counts > 0][order], tensor.values)
    assert np.count_nonzero(counts <= 0) == 2000
    dense = tensor.to_dense()
    assert not dense[tuple(cells[counts < 0].T)].any()
    assert dense[tuple(cells[counts == 0].T)].all()  # draws that hit an entry have weight 0
    expected = 1 / (2000 * chances(case.factors))
    zeros = counts < 0
    np.testing.assert_allclose(-counts[zeros], expected[tuple(cells[zeros].T)], rtol=1e-5)


@pytest.mark.parametrize("shape", [*SHAPES, (1300, 3, 2)])
def test_zero_cells_come_as_often_as_the_model_says(shape):
    case = make_problem(shape, density=0.2, signed=True)
    factors = [f.copy() for f in case.factors]
    factors[0][1:4] = 0  # these get only uniform draws
    factors[-1][:, 1] = 0  # a phenotype that is switched off
    model = np.concatenate(factors)
    number = 400_000
    cells, counts = drawn(case.tensor, number, np.random.default_rng(3), model)
    places = np.ravel_multi_index(tuple(cells[counts <= 0].T), shape)
    often = np.bincount(places, minlength=np.prod(shape))
    assert stats.chisquare(often, number * chances(factors).ravel()).pvalue > 1e-4


@pytest.mark.parametrize(("shape", "entry"), [((7, 5, 6), 0.0), ((2,) * 7, 1e-45)])
def test_zero_cells_are_uniform_with_a_model_of_zeros_or_of_numbers_too_small(shape, entry):
    """The product of seven factors with the smallest float32 values has no inverse."""
    tensor, model = make_problem(shape).tensor, np.full((sum(shape), 3), entry, np.float32)
    assert (model > 0).all() == (entry > 0)
    cells, counts = drawn(tensor, 50_000, np.random.default_rng(1), model)
    np.testing.assert_allclose(counts[counts < 0], -tensor.cells / 50_000, rtol=1e-6)
    often = np.bincount(np.ravel_multi_index(tuple(cells[counts <= 0].T), shape))
    assert stats.chisquare(often).pvalue > 1e-4


@pytest.mark.slow
def test_places_are_random():
    tensor = SparseTensor.from_coo([[0, 0], [0, 2], [1, 1], [2, 0], [2, 1]], [1] * 5, (3, 3))
    rng = np.random.default_rng(5)
    model = rng.random((6, 2)).astype(np.float32)
    draws = [drawn(tensor, 4, rng, model) for _ in range(700)]
    # A shuffle treats all 9 visits alike: each visit is at each place equally often.
    places = np.zeros((6, 9))
    for cells, counts in draws:
        for k, cell in enumerate(tensor.indices):
            places[k, np.flatnonzero((cells == cell).all(axis=1) & (counts > 0))] += 1
        places[5] += counts <= 0
    assert (places[:5].sum(axis=1) == 700).all()
    assert min(stats.chisquare(row).pvalue for row in places) > 1e-4


def test_random_numbers_are_splitmix64():
    """The first numbers from seed 1234567 match other implementations of the algorithm."""
    expected = [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
        4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
    seed = np.uint64(1234567)
    assert [random_number(seed, k) for k in range(1, 6)] == [(z >> 11) * 2.0**-53 for z in expected]
