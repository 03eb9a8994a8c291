"""The order of a pass: every entry once, zero cells uniform, places random."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfact_flower.solver.kernels.order import (
    _uniform,
    draw_visits,
    entries_by_row,
    first_entries,
    visits,
)
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.stack import row_offsets

SHAPES = [(7, 5), (7, 5, 6), (5, 4, 3, 6)]


def drawn(tensor: SparseTensor, zeros: int, rng: np.random.Generator, patients=None):
    first, last = patients or (0, tensor.n_patients)
    starts = np.searchsorted(tensor.indices[:, 0], np.arange(first, last + 1))
    rows, counts = draw_visits(tensor, first, starts, zeros, rng)
    return rows - row_offsets(tensor.shape)[:-1], counts


@pytest.mark.parametrize("shape", SHAPES)
def test_draw_visits_every_entry_once_and_fills_up_with_zero_cells(problem, shape):
    tensor = problem(shape).tensor
    first, last = 2, 5
    cells, counts = drawn(tensor, 200, np.random.default_rng(0), (first, last))
    here = (tensor.indices[:, 0] >= first) & (tensor.indices[:, 0] < last)
    entries = cells[counts > 0]
    order = np.lexsort(entries.T[::-1])
    np.testing.assert_array_equal(entries[order], tensor.indices[here])
    np.testing.assert_array_equal(counts[counts > 0][order], tensor.values[here])
    zeros = cells[counts == 0]
    assert len(zeros) == 200
    assert ((zeros[:, 0] >= first) & (zeros[:, 0] < last)).all()
    assert not tensor.to_dense()[tuple(zeros.T)].any()


def test_zero_cells_are_uniform_and_their_places_random():
    tensor = SparseTensor.from_coo([[0, 0], [0, 2], [1, 1], [2, 0], [2, 1]], [1] * 5, (3, 3))
    rng = np.random.default_rng(5)
    draws = [drawn(tensor, 4, rng) for _ in range(4000)]
    cells = np.concatenate([cells[counts == 0] for cells, counts in draws])
    _, often = np.unique(cells, axis=0, return_counts=True)
    assert len(often) == 4
    assert stats.chisquare(often).pvalue > 1e-4
    # All 9 visits are alike to a shuffle: each takes each place equally often.
    places = np.zeros((6, 9))
    for cells, counts in draws:
        for k, cell in enumerate(tensor.indices):
            places[k, np.flatnonzero((cells == cell).all(axis=1) & (counts > 0))] += 1
        places[5] += counts == 0
    assert (places[:5].sum(axis=1) == 4000).all()
    assert min(stats.chisquare(row).pvalue for row in places) > 1e-4


def test_starts_are_where_each_patient_begins(problem):
    tensor = problem((1300, 5, 6), density=0.02).tensor
    expected = np.searchsorted(tensor.indices[:, 0], np.arange(1301))
    np.testing.assert_array_equal(first_entries(entries_by_row(tensor)[0]), expected)
    given, found = (
        list(visits(tensor, 100, np.random.default_rng(0), starts)) for starts in (expected, None)
    )
    for (rows, counts), (other_rows, other_counts) in zip(given, found, strict=True):
        np.testing.assert_array_equal(rows, other_rows)
        np.testing.assert_array_equal(counts, other_counts)


@pytest.mark.parametrize("shape", SHAPES)
def test_entries_are_counted_by_row_of_each_mode(problem, shape):
    tensor = problem(shape).tensor
    for n, often in enumerate(entries_by_row(tensor)):
        others = tuple(m for m in range(len(shape)) if m != n)
        np.testing.assert_array_equal(often, np.count_nonzero(tensor.to_dense(), axis=others))


def test_random_numbers_are_splitmix64():
    """The first numbers from seed 1234567 that the algorithm's other implementations give."""
    expected = [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
        4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
    seed = np.uint64(1234567)
    assert [_uniform(seed, k) for k in range(1, 6)] == [(z >> 11) * 2.0**-53 for z in expected]


def test_every_order_of_the_entries_is_as_likely():
    tensor = SparseTensor.from_coo([[0, 0], [0, 1], [1, 0], [1, 1]], [1, 2, 3, 4], (2, 2))
    rng = np.random.default_rng(1)
    orders = [drawn(tensor, 0, rng)[1] for _ in range(24 * 200)]
    _, often = np.unique(np.array(orders), axis=0, return_counts=True)
    assert len(often) == 24
    assert stats.chisquare(often).pvalue > 1e-4


def test_zero_cells_of_a_nearly_full_block_are_told_from_its_entries():
    """Every second look at the table finds a bit, so the search in the indices must decide."""
    shape, rng = (40, 6, 7), np.random.default_rng(2)
    full = rng.random(shape) < 0.97
    tensor = SparseTensor.from_coo(np.argwhere(full), np.ones(full.sum()), shape)
    cells, counts = drawn(tensor, 5000, rng)
    zeros, often = np.unique(cells[counts == 0], axis=0, return_counts=True)
    np.testing.assert_array_equal(zeros, np.argwhere(~full))
    assert stats.chisquare(often).pvalue > 1e-4
