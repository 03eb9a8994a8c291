import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpfact_flower.estimation import refine
from dpfact_flower.estimation.refine import Average, averaged, first_columns, m_and_g, refine_factor
from dpfact_flower.privacy.patient.statistics import refinement
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.triangle import whole_size


def unit(factor):
    return factor / np.linalg.norm(factor, axis=0)


def planted(rng, sizes, rank):
    """Draw sparse non-negative columns of norm 1 in which every row is used."""
    return tuple(unit(rng.random((n, rank)) * (rng.random((n, rank)) < 0.4) + 1e-3) for n in sizes)


def near(factors, rng, size=0.2):
    return tuple(unit(f + size * rng.random(f.shape) * f.max()).astype(np.float32) for f in factors)


def site_statistics(factors, patients, mode):
    """Compute M and G, cell by cell, of patients whose tensors equal the model.

    The patients' data follow `factors` of all modes, and the statistics use the same factors.
    """
    sizes, rank = [len(f) for f in factors], factors[0].shape[1]
    m, g = np.zeros((sizes[mode], rank)), np.zeros((rank, rank))
    for a in patients:
        for cell in product(*map(range, sizes)):
            columns = [f[j] for f, j in zip(factors, cell, strict=True)]
            value = sum(a[r] * math.prod(c[r] for c in columns) for r in range(rank))
            others = columns[:mode] + columns[mode + 1 :]
            for r in range(rank):
                m[cell[mode], r] += value * math.prod(c[r] for c in others) * a[r]
        g += np.outer(a, a)
    return m, g


def pack(m, g):
    """Lay out M and G as a site does: M's rows, and G's upper triangle, as long as G."""
    upper = np.triu_indices(len(g))
    triangle = g[upper] * np.where(upper[0] == upper[1], 1, math.sqrt(2))
    return np.concatenate([m.ravel(), triangle]).astype(np.float32)


def slow_refine(releases, factors, mode, sigma, shrink, tau, pull):
    """Apply the documented formulas, one scalar at a time where that is fast enough."""
    size, rank = factors[mode].shape
    sites = len(releases)
    ms, gs = [], []
    for release in releases:
        values = [float(v) for v in release]
        ms.append(np.array(values[: size * rank]).reshape(size, rank))
        g, place = np.zeros((rank, rank)), size * rank
        for r in range(rank):
            for s in range(r, rank):
                g[r, s] = g[s, r] = values[place] if r == s else values[place] / math.sqrt(2)
                place += 1
        gs.append(g)
    h = np.ones((rank, rank))
    for factor in factors[:mode] + factors[mode + 1 :]:
        f = factor.astype(np.float64)
        for r, s in product(range(rank), repeat=2):
            h[r, s] *= sum(f[j, r] * f[j, s] for j in range(len(f)))

    d = np.array([[g[r, r] for r in range(rank)] for g in gs])
    usage = refine.plausible_usage(d, sigma)
    u = np.ones((sites, rank))
    for r in range(rank):
        raised = [usage[t, r] + 0.02 * max(usage[:, r]) + 1e-9 for t in range(sites)]
        likely = [x / (x + size * sigma * sigma) for x in raised]
        u[:, r] = [x / max(likely) for x in likely]
    noise = [sigma * math.sqrt(sum(x * x for x in u[:, r])) for r in range(rank)]
    weighted = [
        max(sum(u[t, r] * d[t, r] for t in range(sites)), math.sqrt(2) * noise[r] + 1e-9)
        for r in range(rank)
    ]
    energy = [max(sum(usage[:, r]), weighted[r]) for r in range(rank)]
    g = sum(gs)
    q = np.zeros((rank, rank))
    for r, s in product(range(rank), repeat=2):
        value = g[r, s] if g[r, s] >= sigma * math.sqrt(sites) / math.sqrt(2) else 0.0
        q[r, s] = (energy[r] if r == s else value) * h[r, s]
    values, vectors = np.linalg.eigh(q)
    q = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
    for r in range(rank):
        q[r, r] = max(q[r, r], 1e-9)

    previous = factors[mode].astype(np.float64)
    target = previous @ q
    for t in range(sites):
        residual = ms[t] - previous @ (gs[t] * h)
        for r in range(rank):
            target[:, r] += u[t, r] * energy[r] / weighted[r] * residual[:, r]
    x = previous.copy()
    for _ in range(tau):
        for r in range(rank):
            scaled = noise[r] * energy[r] / weighted[r]
            gamma = pull * energy[r] + 500.0 * scaled
            for j in range(size):
                v = target[j, r] + gamma * previous[j, r] - shrink * scaled
                v -= sum(x[j, s] * q[s, r] for s in range(rank) if s != r)
                x[j, r] = max(0.0, v / (q[r, r] + gamma))
    for r in range(rank):
        norm = math.sqrt(sum(x[:, r] ** 2))
        x[:, r] = x[:, r] / norm if norm > 1e-9 else previous[:, r]
    return x


def noisy_releases(rng, factors, mode, sites, sigma, patients=30):
    releases = []
    for _ in range(sites):
        clean = pack(*site_statistics(factors, rng.random((patients, factors[0].shape[1])), mode))
        releases.append((clean + sigma * rng.normal(size=clean.shape)).astype(np.float32))
    return releases


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_the_first_phenotypes_of_a_release_are_a_smaller_release(size, rank, seed):
    rng = np.random.default_rng(seed)
    m, g = rng.normal(size=(size, rank)), rng.normal(size=(rank, rank))
    g = g + g.T
    for kept in range(1, rank + 1):
        fewer = first_columns(pack(m, g)[None], size, rank, kept)[0]
        np.testing.assert_array_equal(fewer, pack(m[:, :kept], g[:kept, :kept]))


def test_the_sites_own_statistic_is_in_this_order():
    rng = np.random.default_rng(1)
    factors = planted(rng, (5, 4), 3)
    dense = rng.poisson(0.5, (1, 5, 4))
    dense[0, 2, 1] = 3
    tensor = SparseTensor.from_coo(np.argwhere(dense), dense[dense > 0], dense.shape)
    made = refinement(tensor, factors, 1, ridge=np.zeros(3), bound=1.0, sigma=1e-3)
    m, g = m_and_g(made.total * made.grid, 4, 3)
    a = np.sqrt(np.diag(g))
    np.testing.assert_allclose(g, np.outer(a, a), atol=1e-6)
    slice_ = dense[0] / np.linalg.norm(dense)
    expected = np.einsum("jk,jr,r->kr", slice_, factors[0], a)
    # One weight w for both parts: M carries w, sqrt(diag G) its root.
    active = expected > 1e-9
    ratio = m[active] / expected[active]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    np.testing.assert_array_equal(m[~active], 0)


@pytest.mark.parametrize("sizes", [(6,), (5, 4), (4, 3, 2)])
@pytest.mark.parametrize("sigma", [0.0, 0.3, 20.0])
@pytest.mark.parametrize("sites", [1, 3])
def test_update_against_a_slow_reference(sizes, sigma, sites):
    rng = np.random.default_rng(len(sizes) + sites)
    truth = planted(rng, sizes, 3)
    factors = near(truth, rng)
    for mode in range(len(sizes)):
        releases = noisy_releases(rng, truth, mode, sites, sigma)
        found = refine_factor(releases, factors, mode, sigma=sigma, shrink=1.5, tau=2, pull=0.3)
        expected = slow_refine(releases, factors, mode, sigma, 1.5, 2, 0.3)
        np.testing.assert_allclose(found[mode], expected, rtol=1e-7, atol=1e-10)  # float32
        assert found[mode].dtype == np.float32
        for other in set(range(len(sizes))) - {mode}:
            assert found[other] is factors[other]


@pytest.mark.parametrize("sizes", [(7, 5), (4, 3, 5)])
def test_without_noise_the_planted_factor_comes_back(sizes):
    rng = np.random.default_rng(3)
    truth = planted(rng, sizes, 3)
    for mode in range(len(sizes)):
        releases = noisy_releases(rng, truth, mode, 3, 0.0, patients=20)
        factors = [f.astype(np.float32) for f in truth]
        factors[mode] = near(truth, rng, 0.5)[mode]
        found = refine_factor(releases, tuple(factors), mode, sigma=0, shrink=2, tau=2000, pull=0)
        np.testing.assert_allclose(found[mode], truth[mode], atol=2e-4)


def value(problem, factor) -> float:
    """Return the value of the function that `Quadratic` describes."""
    elastic = problem.pull * np.square(factor - problem.previous).sum(axis=0) / 2
    shrunk = problem.shrink * np.abs(factor).sum(axis=0)
    quadratic = np.sum((factor @ problem.curvature) * factor) / 2 - np.sum(problem.target * factor)
    return float(quadratic + np.sum(elastic + shrunk))


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), sigma=st.floats(0, 30), pull=st.floats(0, 2))
def test_passes_never_raise_the_objective(seed, sigma, pull):
    rng = np.random.default_rng(seed)
    truth = planted(rng, (5, 4), 4)
    factors = near(truth, rng)
    releases = noisy_releases(rng, truth, 0, 2, sigma, patients=5)
    problem = refine.pooled(releases, factors, 0, sigma=sigma, shrink=1.0, pull=pull)
    p, x = problem, problem.previous.copy()
    values = [value(p, x)]
    for _ in range(6):
        # `refine_factor` scales its columns to norm 1, so this test runs the passes directly.
        refine._passes(x, p.target, p.curvature, p.previous, p.pull, p.shrink, 1)
        values.append(value(p, x))
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert all(after <= before + slack for before, after in pairwise(values))
    eigenvalues = np.linalg.eigvalsh(problem.curvature)
    assert eigenvalues[0] >= -1e-9 * max(1.0, eigenvalues[-1])


@given(
    arrays(np.float32, (2, 4 * 3 + whole_size(3)), elements=st.floats(-1e6, 1e6, width=32)),
    st.floats(1e-3, 1e3),
)
def test_whatever_is_released_factors_stay_unit_finite_and_non_negative(releases, sigma):
    rng = np.random.default_rng(0)
    factors = near(planted(rng, (4, 3), 3), rng)
    found = refine_factor(list(releases), factors, 0, sigma=sigma, shrink=1, tau=3, pull=0.1)[0]
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1, rtol=1e-5)


def test_a_column_without_signal_keeps_its_value():
    rng = np.random.default_rng(5)
    factors = near(planted(rng, (6, 5), 3), rng)
    m, g = site_statistics(factors, rng.random((20, 3)), 0)
    m[:, 1] = -100
    found = refine_factor([pack(m, g)], factors, 0, sigma=0.1, shrink=1, tau=3, pull=0.0)
    np.testing.assert_allclose(found[0][:, 1], factors[0][:, 1], rtol=1e-6)
    assert not np.allclose(found[0][:, 0], factors[0][:, 0])


def test_usage_under_much_noise_is_share_times_total():
    rng = np.random.default_rng(1)
    d = np.outer([4.0, 2.0, 1.0], rng.random(50) + 1)
    noisy = d + 2.0 * rng.normal(size=d.shape)
    found = refine.plausible_usage(noisy, 2.0)
    # The part that noise explains is removed, so the result is close to the truth and to rank one.
    assert np.abs(found - d).mean() < 0.6 * np.abs(noisy - d).mean()
    assert np.linalg.svd(found, compute_uv=False)[1] < 0.1 * np.linalg.svd(noisy)[1][1]


@pytest.mark.parametrize("sigma", [0.0, 1.0])
@pytest.mark.parametrize("d", [np.zeros((3, 2)), -np.ones((3, 2)), np.zeros((1, 1))])
def test_usage_of_nothing_is_nothing(d, sigma):
    found = refine.plausible_usage(d, sigma)
    np.testing.assert_array_equal(found, np.zeros_like(d))
    np.testing.assert_allclose(refine.site_weights(found, sigma), 1.0)


def test_the_site_that_alone_has_a_phenotype_counts_most_where_noise_is_much():
    usage = np.array([[10.0, 0.0], [5.0, 8.0], [5.0, 0.0]])
    weights = refine.site_weights(usage, 1e4)
    np.testing.assert_allclose(weights[:, 0], [1, 0.5, 0.5], atol=0.02)
    np.testing.assert_allclose(weights[:, 1], [0.02, 1, 0.02], atol=0.001)


RNG = np.random.default_rng(0)
FIRST, SECOND = (RNG.normal(size=(2, 5)).astype(np.float32) for _ in range(2))
BEFORE = Average(("a", "b"), FIRST, 3.0)


def test_the_second_is_averaged_and_its_noise_is_that_of_the_average():
    average = averaged(BEFORE, Average(("a", "b"), SECOND, 4.0), 0.25)
    # float32: each product and the sum are rounded once, by 2^-24 of at most |FIRST| + |SECOND|.
    most = 3 * 2.0**-24 * (np.abs(FIRST) + np.abs(SECOND)).max()
    np.testing.assert_allclose(average.values, 0.25 * FIRST + 0.75 * SECOND, rtol=0, atol=most)
    assert average.sigma == pytest.approx(math.sqrt(0.75**2 + 3.0**2), rel=1e-15)
    assert average.values.dtype == np.float32


@pytest.mark.parametrize("before", [None, BEFORE], ids=["none before", "other sites"])
def test_what_is_not_averaged_is_taken_as_it_is(before):
    newest = Average(("a", "c"), SECOND, 4.0)
    assert averaged(before, newest, 0.5) is newest
