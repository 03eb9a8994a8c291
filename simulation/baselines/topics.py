"""Fit topic models to pooled patients: LDA and NMF without privacy, and private spectral LDA.

The models use the set of each patient's codes. The models ignore how codes are combined.
`private_spectral_lda` follows Wang, Anandkumar and others (2020): topics are found from noisy
moments of distinct codes, by whitening and the tensor power method.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.decomposition import NMF, LatentDirichletAllocation

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.evaluation.prediction import code_presence
from dpfact_flower.privacy import Noise, mu_for_epsilon, sigma_of
from dpfact_flower.tensor import Factors
from simulation.baselines import pooled
from simulation.systems import NO_NOISE, unit_columns

_CELLS = 10**7
"""Number of cells of the patients' third moments that are in memory at a time."""
_PAIRS = 0.5**0.5
"""Norm of a patient's pairs, each counted once: x x' has norm 1, and only its upper half counts."""
_CLIP = 0.1
"""Clipping norm over rank ** 1.5, a typical patient's norm. On the demo, best of 1, .3 and .1."""
_STARTS, _STEPS = 30, 40
"""Numbers of random starts and of steps per start of the power method for each topic."""


class Topics(NamedTuple):
    """Feature factors and patients' memberships. Some methods give no memberships."""

    factors: Factors
    memberships: NDArray[np.float64] | None = None


def lda(cohort: Cohort, rank: int, seed: int = 0) -> Topics:
    """Fit scikit-learn's online latent Dirichlet allocation in three passes."""
    model = LatentDirichletAllocation(
        rank, learning_method="online", batch_size=1024, max_iter=3, random_state=seed
    )
    memberships = model.fit_transform(_presence(cohort))
    return Topics(_by_mode(model.components_.T, cohort), memberships)


def nmf(cohort: Cohort, rank: int, seed: int = 0) -> Topics:
    """Fit scikit-learn's non-negative matrix factorisation of patients by codes."""
    model = NMF(rank, init="nndsvda", random_state=seed)
    memberships = model.fit_transform(_presence(cohort))
    return Topics(_by_mode(model.components_.T, cohort), memberships)


def private_spectral_lda(
    cohort: Cohort, rank: int, epsilon: float, *, delta: float = 1e-5, seed: int = 0
) -> Topics:
    """Fit private spectral LDA to pooled patients.

    The guarantee (epsilon, delta) is proven for adding or removing a patient. Two Gaussian releases
    each use half of the budget. The first release sums pairs of codes. To bound the sensitivity,
    each patient's codes are scaled to norm 1. The second release sums triples, projected onto the
    directions found by the first release. Each patient's triples are clipped. The number of
    patients is public.
    """
    source = Noise.from_os()
    x = _presence(cohort)
    x = scipy.sparse.csr_array(x / np.maximum(scipy.sparse.linalg.norm(x, axis=1), 1)[:, None])
    pairs = _noisy(_pairs(x), _PAIRS, epsilon, delta, source)
    whiten, restore = _whitening(np.triu(pairs, 1), rank)
    clip = _CLIP * rank**1.5
    moment = _noisy(_triples(x, whiten, clip, x.shape[0]), clip, epsilon, delta, source)
    directions = _power_method(_symmetric(moment), np.random.default_rng(seed))
    topics = restore @ directions
    return Topics(_by_mode(topics * np.sign(topics.sum(axis=0)), cohort))


def _noisy(
    exact: NDArray[np.float64], sensitivity: float, epsilon: float, delta: float, source: Noise
) -> NDArray[np.float64]:
    """Add noise to the exact sums of one of the two releases."""
    if epsilon >= NO_NOISE:
        return exact
    sigma = sigma_of(mu_for_epsilon(epsilon, delta) ** 2 / 4, sensitivity)
    return np.asarray(exact + source.gaussian(exact.shape, sigma))


def _pairs(x: scipy.sparse.csr_array) -> NDArray[np.float64]:
    """Return how often pairs of distinct codes occur together, counting each pair once."""
    return np.triu((x.T @ x).toarray(), 1)


def _whitening(
    pairs: NDArray[np.float64], rank: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return one matrix that whitens the pairs to `rank` directions, and one that reverses it."""
    values, vectors = np.linalg.eigh(pairs + pairs.T)
    root = np.sqrt(np.maximum(values[-rank:], 1e-9))
    return vectors[:, -rank:] / root, vectors[:, -rank:] * root


def _triples(
    x: scipy.sparse.csr_array, whiten: NDArray[np.float64], clip: float, patients: int
) -> NDArray[np.float64]:
    """Sum the patients' whitened triples of distinct codes, clipping each patient to norm `clip`.

    Triples that repeat a code are subtracted by inclusion-exclusion.
    """
    rank = whiten.shape[1]
    squares = np.einsum("jr,js->jrs", whiten, whiten).reshape(len(whiten), -1)
    cubes = np.einsum("jr,js,jt->jrst", whiten, whiten, whiten).reshape(len(whiten), -1)
    total = np.zeros((rank,) * 3)
    batch = max(1, _CELLS // rank**3)
    for first in range(0, x.shape[0], batch):
        own = x[first : first + batch]
        y = own @ whiten
        twice = (own.power(2) @ squares).reshape(-1, rank, rank)
        triples = np.einsum("ir,is,it->irst", y, y, y)
        repeated = np.einsum("irs,it->irst", twice, y)
        for axes in ((0, 1, 2, 3), (0, 1, 3, 2), (0, 3, 1, 2)):
            triples -= repeated.transpose(axes)
        triples += 2 * (own.power(3) @ cubes).reshape(triples.shape)
        triples *= patients**1.5  # whitening used sums; values are now about 1 per patient
        norms = np.sqrt(np.einsum("irst,irst->i", triples, triples))
        total += np.einsum("irst,i->rst", triples, np.minimum(1, clip / np.maximum(norms, 1e-12)))
    return total


def _symmetric(moment: NDArray[np.float64]) -> NDArray[np.float64]:
    orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    return np.asarray(np.mean([moment.transpose(order) for order in orders], axis=0))


def _power_method(moment: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Find the R leading directions of a symmetric R x R x R tensor, one by one."""
    left, found = moment.copy(), []
    for _ in range(len(moment)):
        v = rng.normal(size=(len(moment), _STARTS))
        for _ in range(_STEPS):
            v = np.einsum("rst,sn,tn->rn", left, v, v)
            v /= np.maximum(np.linalg.norm(v, axis=0), 1e-12)
        weights = np.einsum("rst,rn,sn,tn->n", left, v, v, v)
        best = int(np.argmax(weights))
        found.append(v[:, best])
        left -= weights[best] * np.einsum("r,s,t->rst", *[v[:, best]] * 3)
    return np.column_stack(found)


def _presence(cohort: Cohort) -> scipy.sparse.csr_array:
    return code_presence(pooled(cohort)).astype(np.float64)


def _by_mode(topics: NDArray[Any], cohort: Cohort) -> Factors:
    """Split topics by mode into factors with columns of norm 1."""
    sizes = [len(vocabulary) for vocabulary in cohort.vocabularies]
    return unit_columns(np.split(topics, np.cumsum(sizes)[:-1]))
