"""The kept codes, compared with a plain search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.estimation.codes import kept_codes, paired_codes


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
    return [np.array(draw(values), np.float32) for _ in range(sites)], sizes, kept


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
