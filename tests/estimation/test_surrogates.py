"""Surrogate patients: their numbers of codes, and their co-occurrences."""

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from dpfact_flower.estimation import outlook, surrogates
from dpfact_flower.estimation import start as start_module
from dpfact_flower.estimation.outlook import needs_of
from dpfact_flower.estimation.pair_fit import matrices_of
from dpfact_flower.estimation.start import start_factors
from dpfact_flower.estimation.surrogates import mean_codes, surrogate_patients, surrogates_of
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.privacy.patient.statistics import cooccurrence
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor import SparseTensor

SIGMA = 1e-3
SIZES = (7, 9)


def patients(codes, sizes, number=200, seed=0):
    """Draw patients with the given numbers of codes in each mode, in all combinations."""
    rng = np.random.default_rng(seed)
    cells = []
    for patient in range(number):
        own = [rng.choice(n, k, replace=False) for n, k in zip(sizes, codes, strict=True)]
        cells += itertools.product([patient], *own)
    return SparseTensor.from_coo(np.array(cells), np.ones(len(cells)), (number, *sizes))


def released(tensor):
    bounded = cooccurrence(tensor, sigma=SIGMA)
    return (bounded.total * bounded.grid).astype(np.float32)


@pytest.mark.parametrize("codes", [(1, 1), (1, 2), (2, 3), (3, 3), (1, 2, 1), (2, 2, 3)])
def test_counts_are_those_of_patients_who_are_all_alike(codes):
    sizes = (7, 9, 8)[: len(codes)]
    total = matrices_of([released(patients(codes, sizes))], sum(sizes))[:, 0]
    # Truncation reduces each pair of a patient by less than a grid unit.
    np.testing.assert_allclose(mean_codes(total, sizes), codes, rtol=1e-2)


def test_counts_are_raised_by_so_much_noise_on_each_mass():
    noise = 0.5
    total = matrices_of([released(patients((2, 3), SIZES))], 16)[:, 0].astype(np.float64)
    off = total.copy()
    for block, count in (((0, 7), 21), ((7, 16), 36)):  # spread evenly over a mode's pairs
        own = slice(*block)
        off[own, own] += noise / math.sqrt(count) * (1 - np.eye(block[1] - block[0]))
    off[:7, 7:] -= noise / math.sqrt(63)
    off[7:, :7] = off[:7, 7:].T
    raised = mean_codes(total, SIZES, raised=noise)
    np.testing.assert_allclose(raised, mean_codes(off, SIZES), rtol=1e-9)
    assert min(np.subtract(raised, mean_codes(total, SIZES))) > 1e-3


def symmetric(sizes, rng):
    codes = sum(sizes)
    pairs = np.triu(rng.random((codes, codes)) * (rng.random((codes, codes)) < 0.7), 1)
    return pairs + pairs.T


def reference(pairs, first, chance):
    """Return the probability of each (code of mode 0, code of mode 1, another code of mode 1)."""
    begin = {0: range(first), 1: range(first, len(pairs))}
    other = {c: begin[0] if c >= first else begin[1] for c in range(len(pairs))}
    frequency = {c: sum(pairs[k, c] for k in other[c]) for c in other}

    def given(k, c):  # P(k | c) among the codes of k's mode, none of which occurs twice
        if k == c:
            return 0.0
        mode = begin[int(k >= first)]
        among = sum(pairs[j, c] for j in mode)
        tied = pairs[k, c] / among if among else 0.0
        return (1 - chance) * tied + chance * frequency[k] / sum(frequency[j] for j in mode)

    def shares(scores):
        whole = sum(scores.values())
        return {c: score / whole for c, score in scores.items()} if whole else {}

    found = {}
    for p, of_p in shares({c: frequency[c] for c in begin[0]}).items():
        for s, of_s in shares({c: frequency[c] * given(p, c) for c in begin[1]}).items():
            thirds = {c: frequency[c] * given(p, c) * given(s, c) for c in begin[1]}
            for t, of_t in shares(thirds).items():
                found[p, s, t] = of_p * of_s * of_t
    return found


def test_codes_are_drawn_as_the_slow_reference_says():
    sizes, number = (3, 4), 60_000
    pairs = symmetric(sizes, np.random.default_rng(3))
    chances = reference(pairs, sizes[0], 0.5 * (1 - 1 / math.sqrt(1.3)))
    drawn = surrogate_patients(pairs, (1.0, 1.3), sizes, number, np.random.default_rng(4))
    per_patient = {}
    for patient, p, s in drawn.indices:
        per_patient.setdefault(int(patient), []).append((int(p), int(s) + sizes[0]))
    found = Counter(
        (cells[0][0], frozenset(s for _, s in cells))
        for cells in per_patient.values()
        if len(cells) == 2
    )
    among, expected = sum(found.values()), Counter()
    for (p, s, t), chance in chances.items():
        expected[p, frozenset((s, t))] += chance
    whole = sum(expected.values())  # less than 1 if no second code occurs with the first two
    assert among > 5_000
    assert set(found) <= {key for key, chance in expected.items() if chance > 0}
    for key, share in expected.items():
        chance = share / whole
        spread = math.sqrt(among * chance * (1 - chance))
        assert abs(found[key] - among * chance) <= 5 * spread + 1, key


def test_pairs_of_two_modes_occur_as_told():
    sizes, number = (5, 6), 40_000
    pairs = symmetric(sizes, np.random.default_rng(5))
    drawn = surrogate_patients(pairs, (1.0, 1.0), sizes, number, np.random.default_rng(6))
    assert drawn.nnz == number
    found = drawn.to_dense().sum(axis=0)
    chance = pairs[: sizes[0], sizes[0] :] / pairs[: sizes[0], sizes[0] :].sum()
    spread = np.sqrt(number * chance * (1 - chance))
    assert (np.abs(found - number * chance) <= 5 * spread).all()


def test_a_model_stands_for_pairs_and_the_rest_counts_as_far_as_it_stands_out():
    model = np.full((3, 3), 2.0)
    total = np.array([[9.0, 2.5, 8.0], [2.5, 9.0, -7.0], [8.0, -7.0, 9.0]])
    found = surrogates.likely_pairs(total, model, 1.0)
    np.testing.assert_allclose(found, [[0, 2, 7.25], [2, 0, 0], [7.25, 0, 0]])


def made(codes, sizes=SIZES, sigma=SIGMA, releases=None):
    """Surrogates of patients with so many codes, or of other releases than started it."""
    own = [released(patients(codes, sizes))]
    start = start_factors(own, sizes, 2, sigma, np.random.default_rng(1))
    return surrogates_of(releases or own, start, sigma, np.random.default_rng(2), number=2_000)


def test_surrogates_are_drawn_where_patients_have_few_codes_alone():
    assert made((5, 6)) is None
    found = made((1, 2))
    assert found is not None
    assert found.feature_shape == SIZES
    np.testing.assert_array_equal(found.indices, made((1, 2)).indices)


def test_nothing_is_drawn_where_noise_may_hide_many_codes():
    assert made((1, 2), sigma=2.0) is not None
    assert made((1, 2), sigma=6.0) is None  # at 30, nothing would exceed the noise


def test_nothing_is_drawn_where_masses_are_beyond_any_number():
    with np.errstate(all="ignore"):
        assert made((1, 2), releases=[np.full(16 * 15 // 2, 3e38, np.float32)] * 2) is None


def test_nothing_is_drawn_of_nothing():
    rng = np.random.default_rng(1)
    assert surrogate_patients(np.zeros((7, 7)), (1.0, 2.0), (3, 4), 10, rng).nnz == 0


def test_patients_of_one_mode_have_none_for_nothing_tells_how_many_codes_they_have():
    assert made((2,), (9,)) is None


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 6, 50])
def test_start_and_surrogates_stay_within_the_memory_that_a_plan_foresees(sites, monkeypatch):
    monkeypatch.setattr(outlook, "_SURROGATE_BYTES", 0)  # the codes do not change this
    monkeypatch.setattr(surrogates, "_CHUNK", 50)  # grows with the codes, not with their pairs
    monkeypatch.setattr(start_module, "_RESTARTS", 1)
    sizes = (400, 400)
    plan = plan_patient(PrivacySettings(patients=10_000), sizes=sizes, rank=3, sites=sites)
    release = cooccurrence(patients((1, 2), sizes, 1_000), sigma=SIGMA).total.astype(np.float32)
    releases, rng = [release] * sites, np.random.default_rng(0)
    tracemalloc.start()
    start = start_factors(releases, sizes, 3, SIGMA, rng)
    for_start = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    few = 500  # their own memory does not grow with the codes
    assert surrogates_of(releases, start, SIGMA, rng, number=few) is not None
    for_surrogates = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    beside = needs_of(plan).server - sites * release.nbytes
    assert beside / 2 < for_start < beside + 1e6
    assert for_surrogates < beside + 1e6
