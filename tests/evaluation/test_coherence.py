"""Coherence of leading codes, against patients counted one by one."""

from itertools import combinations
from math import log

import numpy as np
import pytest

from dpfact_flower.evaluation.clinical import coherence, npmi
from dpfact_flower.tensor import SparseTensor


def patients(seed, many, sizes=(9, 11)):
    rng = np.random.default_rng(seed)
    dense = (rng.random((many, *sizes)) < 0.04).astype(np.float32)
    where = np.argwhere(dense)
    return dense, SparseTensor.from_coo(where, dense[tuple(where.T)], dense.shape)


def slow_coherence(features, sites):
    """By the definition: codes by patients, pair by pair."""
    present = np.concatenate(
        [np.concatenate([dense.any(axis=2), dense.any(axis=1)], axis=1) for dense in sites]
    )
    begins = np.cumsum([0, *map(len, features)])
    values = []
    for phenotype in range(features[0].shape[1]):
        leading = [
            begin + at
            for begin, factor in zip(begins, features, strict=False)
            for at in np.argsort(-factor[:, phenotype])[:5]
            if factor[at, phenotype] >= factor[:, phenotype].max() / 3
        ]
        pairs = []
        for one, two in combinations(leading, 2):
            both = np.mean(present[:, one] & present[:, two])
            if both == 0:
                pairs.append(-1.0)
            else:
                alone = np.mean(present[:, one]) * np.mean(present[:, two])
                pairs.append(log(both / alone) / -log(both))
        values.append(np.mean(pairs))
    return np.mean(values)


def test_coherence_is_that_of_patients_counted_one_by_one():
    sites = [patients(seed, many) for seed, many in ((1, 60), (2, 35))]
    rng = np.random.default_rng(5)
    features = [rng.random((size, 3)) ** 2 for size in (9, 11)]
    found = coherence(features, (tensor for _, tensor in sites))
    expected = slow_coherence(features, [dense for dense, _ in sites])
    assert found.value == pytest.approx(expected)
    assert -1 < expected < 1


def test_phenotypes_that_patients_have_are_coherent_and_dealt_ones_are_not():
    rng = np.random.default_rng(0)
    truth = [np.kron(np.eye(4), np.ones((5, 1))) + 0.01 * rng.random((20, 4)) for _ in range(2)]
    kinds = rng.integers(4, size=400)
    dense = np.einsum("in,jn->nij", truth[0][:, kinds], truth[1][:, kinds]) > 0.5
    dense &= rng.random(dense.shape) < 0.5
    where = np.argwhere(dense)
    tensor = SparseTensor.from_coo(where, np.ones(len(where)), dense.shape)
    found = coherence(truth, [tensor])
    assert found.value > 0.7
    assert found.by_chance < -0.3


def test_pairs_at_the_ends_of_the_scale():
    """Codes 0 and 1 are in all ten patients, 2 in half of them, 3 in the others, 4 in nobody."""
    present = np.array([[1, 1, n < 5, n >= 5, 0] for n in range(10)], float)
    found = npmi(present.T @ present, 10)
    assert found[0, 1] == 1.0
    assert found[0, 2] == pytest.approx(0.0)
    assert found[2, 3] == -1.0
    assert found[0, 4] == -1.0


def test_a_phenotype_of_one_code_has_no_pair():
    _, tensor = patients(1, 30)
    features = [np.zeros((size, 1)) for size in (9, 11)]
    features[0][2] = 1.0
    assert coherence(features, [tensor]).value == 0.0
