"""Factors fitted to surrogates: the best of several starts, for any number of threads."""

from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.estimation import surrogate_fit as module
from dpfact_flower.estimation.certainty import false_discovery, fitted_to_halves, typical_counts
from dpfact_flower.estimation.start import Start, positive_columns, start_factors
from dpfact_flower.estimation.surrogate_fit import fit_settings, fitted_to_surrogates
from dpfact_flower.privacy.patient.statistics import cooccurrence
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.solver.mttkrp import squared_error
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import factor_match_score
from dpfact_flower.tensor.sparse import as_tensor
from tests.bits import assert_bits

pytestmark = pytest.mark.usefixtures("all_surrogates")

SHAPE, SIGMA, RANK = (9, 12), 0.05, 3


def single_cells(number=4000, seed=0):
    """Draw patients with one cell, from overlapping phenotypes with a leading code per mode."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, number)
    cells = [np.arange(number)]
    for size in SHAPE:
        chances = 0.3 ** np.arange(size)
        place = rng.choice(size, number, p=chances / chances.sum())
        cells.append((place + 2 * kind) % size)
    return SparseTensor.from_coo(np.stack(cells, axis=1), np.ones(number), (number, *SHAPE))


def explained(tensor, factors):
    return squared_error(tensor, (fitted_patients(tensor, factors, nonnegative=True), *factors)).fit


def assert_unit_and_positive(factors):
    for factor in factors:
        assert (factor > 0).all()
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, rtol=1e-5)


@pytest.fixture(scope="module")
def tensor() -> SparseTensor:
    return single_cells()


@pytest.fixture(scope="module")
def released(tensor):
    bounded = cooccurrence(tensor, sigma=SIGMA)
    return [(bounded.total * bounded.grid).astype(np.float32)]


@pytest.fixture(scope="module")
def start(released) -> Start:
    return start_factors(released, SHAPE, RANK, SIGMA, np.random.default_rng(1))


def fitted(start, released, loss="squared"):
    by = fit_settings(SolverSettings(loss=loss))
    return fitted_to_surrogates(start, released, SIGMA, np.random.default_rng(2), by)


@pytest.mark.nightly
def test_factors_explain_patients_of_few_codes_better_than_the_start_does(tensor, start, released):
    found = fitted(start, released)
    assert explained(tensor, found) > 1.02 * explained(tensor, start.factors)
    assert_unit_and_positive(found)


@pytest.fixture(scope="module")
def poor(start) -> Start:
    """Return a start whose phenotypes are all equal."""
    alike = [np.repeat(factor[:, :1], RANK, axis=1) for factor in start.factors]
    return replace(start, factors=tuple(alike))


@pytest.mark.slow
def test_a_poor_start_does_not_hold_the_factors_back(tensor, start, poor, released, monkeypatch):
    best, found = explained(tensor, fitted(start, released)), fitted(poor, released)
    assert explained(tensor, found) > 0.97 * best
    monkeypatch.setattr(module, "_RANDOM", 0)
    assert explained(tensor, fitted(poor, released)) < 0.9 * best


@pytest.mark.slow
def test_the_beginning_that_explains_most_is_taken(poor, released, monkeypatch):
    made, real = [], module.fit_factors

    def noted(tensor, factors, *rest):
        made.append((tensor.n_patients, factors, *real(tensor, factors, *rest)))
        return made[-1][2:]

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(module, "fit_factors", noted)
    found = fitted(poor, released)
    *tried, (number, begun, ended, _) = made
    assert len(tried) == 1 + module._RANDOM
    assert_bits(tried[0][1], poor.factors)
    _, _, best, explained = max(tried, key=lambda each: each[3])
    assert explained > tried[0][3]
    assert_bits(begun, best)
    assert_bits(found, ended)
    assert {each[0] for each in tried} == {module._FEW}
    assert number == module._MANY


def test_surrogates_without_cells_are_left_out():
    places = [[1, 0, 0], [3, 1, 1], [3, 0, 1], [6, 1, 0]]
    cells = SparseTensor.from_coo(places, [1, 2, 2, 1], (9, 2, 2))
    few = module.solver_input(cells, 2, SolverSettings())
    assert few.shape == (2, 2, 2)
    np.testing.assert_allclose(few.values, [1, 0.5**0.5, 0.5**0.5])
    assert module.solver_input(cells, 5, SolverSettings()).n_patients == 3


def planted(rank=4, size=25):
    """Return factors of phenotypes that share the most frequent codes."""
    rng = np.random.default_rng(9)
    return [rng.dirichlet(np.geomspace(2, 0.02, size), rank).T for _ in range(2)]


def poisson_patients(number, seed, *, rank=4, size=25):
    """Draw counts from a Poisson model in which all phenotypes share the most frequent codes."""
    rng, factors = np.random.default_rng(seed), planted(rank, size)
    patients = 6 * rng.dirichlet(np.full(rank, 0.2), number)
    counts = rng.poisson(np.einsum("ir,jr,kr->ijk", patients, *factors))
    return SparseTensor.from_coo(np.argwhere(counts), counts[counts > 0], counts.shape)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "least", "most"), [
    ("squared", 0.7, 0.8), ("bernoulli", 0.75, 1.0), ("poisson", 0.88, 1.0)
])  # fmt: skip
def test_the_loss_of_the_counts_finds_what_is_planted_better_than_least_squares(loss, least, most):
    by = fit_settings(SolverSettings(loss=loss))
    patients = module.solver_input(poisson_patients(3000, 1), 3000, by)
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        begun = positive_columns([rng.random((25, 4)) for _ in range(2)])
        (_, before), (found, after) = (
            module.fit_factors(patients, begun, rng, by, passes) for passes in (2, 40)
        )
        assert after > before > 0
        assert least < factor_match_score(found, planted()) < most
        assert_unit_and_positive(found)


def test_least_squares_are_not_drawn_to_the_start():
    rng = np.random.default_rng(2)
    tensor = as_tensor(np.einsum("i,j,k->ijk", *(rng.random(size) for size in (20, 5, 6))))
    begun = positive_columns([rng.random((size, 1)) for size in (5, 6)])
    _, share = module.fit_factors(tensor, begun, rng, fit_settings(SolverSettings()))
    assert share > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize("loss", [pytest.param("squared", marks=pytest.mark.nightly), "poisson"])
def test_threads_change_nothing(start, released, monkeypatch, loss):
    found = []
    for name in ("_FEW", "_MANY"):  # threads do not depend on the number of surrogates
        monkeypatch.setattr(module, name, 4_000)
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append(fitted(start, released, loss))
    assert_bits(*found)


def test_the_first_model_has_as_many_counts_of_a_patient_as_there_are():
    fit, rng = fit_settings(SolverSettings(loss="poisson")), np.random.default_rng(0)
    tensor = module.solver_input(poisson_patients(50, 1), 50, fit)
    factors = tuple(rng.random((25, 4)) for _ in range(2))
    rows, *columns = module._lengthened(tensor, rng.random((tensor.n_patients, 4)), factors)
    model = np.einsum("ir,jr,kr->ijk", rows, *columns)
    np.testing.assert_allclose(model.sum(axis=(1, 2)), tensor.to_dense().sum(axis=(1, 2)))
    _, single, _ = module._lengthened(tensor, rows, (9 * np.eye(25, 4), factors[1]))
    np.testing.assert_allclose(single.max(axis=0) / single.min(axis=0), 26)


@pytest.mark.slow
def test_phenotypes_are_likely_real_where_they_return_in_halves_of_the_noise(start, released):
    counts = typical_counts(released, SHAPE)
    own = fitted(start, released)

    def chances(sigma):
        rng = np.random.default_rng(3)
        noisy = [each + sigma * rng.standard_normal(each.shape) for each in released]
        return false_discovery(own, fitted_to_halves(noisy, counts, SHAPE, RANK, sigma, rng), 1.0)

    assert max(chances(SIGMA)) < 0.1
    assert min(chances(2000.0)) > 0.1
