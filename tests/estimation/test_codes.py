"""The kept codes, compared with a plain search, and their weights, computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.estimation.codes import code_weights, kept_codes, paired_codes, unweighted


def by_hand(releases, sizes, kept) -> list[list[int]]:
    """Sum the counts, then take the largest one by one; of equal codes, take the earlier."""
    chosen, begin = [], 0
    for size, most in zip(sizes, kept, strict=True):
        total = [sum(float(release[begin + code]) for release in releases) for code in range(size)]
        order = sorted(range(size), key=lambda code: (-total[code], code))
        chosen.append(sorted(order[:most]))
        begin += size
    return chosen


@st.composite
def counts(draw):
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    kept = [draw(st.integers(1, size)) for size in sizes]
    sites = draw(st.integers(1, 4))
    # Few different values give ties, and noise makes counts negative.
    values = st.lists(st.integers(-3, 3), min_size=sum(sizes), max_size=sum(sizes))
    releases = [np.array(draw(values), np.float32) for _ in range(sites)]
    return releases, sizes, kept


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ((2000, 2000), ()), ((2000, 2001), (500, 500)), ((9000, 30), (970, 30)),
        ((30, 5000, 200), (30, 770, 200)), ((700, 5000, 600), (333, 334, 333)), ((4001,), (1000,)),
    ],
)  # fmt: skip
def test_long_lists_are_paired_by_their_most_frequent_codes(sizes, kept):
    assert paired_codes(sizes) == kept


@pytest.mark.slow
@given(counts())
def test_the_most_frequent_codes_are_kept(given_counts):
    releases, sizes, kept = given_counts
    found = kept_codes(releases, sizes, kept)
    assert [codes.tolist() for codes in found] == by_hand(releases, sizes, kept)
    assert {codes.dtype for codes in found} == {np.dtype(np.int32)}


def test_a_cell_counts_by_the_inverse_of_its_codes_frequency():
    releases = [np.array([4, 1, 8, 0.5], np.float32), np.array([12, 3, 1, 0.5], np.float32)]
    kept = (np.array([0, 1], np.int32), np.array([0, 1], np.int32))
    first, second = code_weights(releases, [2, 2], kept, sigma=1e-6)
    np.testing.assert_allclose(first, [0.5, 1], rtol=1e-6)  # 16 and 4 patients
    np.testing.assert_allclose(second, [1 / 3, 1], rtol=1e-6)  # 9 and 1
    assert first.dtype == np.float32


def test_a_count_below_the_noise_counts_as_the_noise():
    """For two sites with noise of 1, a count below 3 sqrt(2) is unknown."""
    release = np.array([100, 0.01, -5], np.float32)
    (weights,) = code_weights([release, 0 * release], [3], (np.arange(3, dtype=np.int32),), 1.0)
    np.testing.assert_allclose(weights, [np.sqrt(3 * np.sqrt(2) / 100), 1, 1], rtol=1e-6)


def test_no_weight_is_smaller_than_a_site_takes():
    release = np.array([1e15, 1e-30], np.float32)
    (weights,) = code_weights([release], [2], (np.arange(2, dtype=np.int32),), 1e-35)
    assert weights.tolist() == [2.0**-20, 1.0]


def test_factors_of_weighted_cells_are_turned_back_into_those_of_the_cells():
    rng = np.random.default_rng(0)
    weights = tuple(rng.uniform(0.1, 1, size).astype(np.float32) for size in (5, 7))
    cells = [rng.random((len(w), 3)) for w in weights]
    cells = [factor / np.linalg.norm(factor, axis=0) for factor in cells]
    weighted = (f * w[:, None].astype(np.float64) for f, w in zip(cells, weights, strict=True))
    learned = tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in weighted)
    for found, expected in zip(unweighted(learned, weights), cells, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # a few roundings to float32
