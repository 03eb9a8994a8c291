"""One round at a site as a pure function."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.synthetic import synthetic
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, DivergenceError, MessageError, PrivacyRefusedError
from dpfact_flower.estimation import codes
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site.elastic import SIGMA, ElasticRound, cooccurrence, initial_state
from dpfact_flower.site.local_fit import local_settings
from dpfact_flower.site.round import JobState, stream
from dpfact_flower.site.store import SiteState
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import CPModel, norm_squared
from tests.bits import assert_bits
from tests.patience import Clock
from tests.site.federation import make_request


def answer(tensor, asked, state=None, site="a", simulation=True):
    sizes = enumerate(tensor.feature_shape)
    source = SiteData(site, tensor, [Vocabulary(f"m{n}", [*map(str, range(i))]) for n, i in sizes])
    work = ElasticRound(source.vocabularies, asked, site=site, simulation=simulation)
    return work.run(source, JobState(state))


@pytest.fixture
def tensor(cohort) -> SparseTensor:
    return cohort.sites[0].tensor


@pytest.mark.parametrize(
    ("most", "kept", "says"),
    [
        (4000, (2, 2), r"needs all codes of each mode, got a selection of \(2, 2\)"),
        (1, (2, 3), r"needs \(2, 2\) codes of each mode, got a selection of \(2, 3\)"),
        (1, (2, 1), r"needs \(2, 2\) codes of each mode, got a selection of \(2, 1\)"),
        (1, (2, 2), ""),
    ],
)
def test_a_start_has_the_codes_that_both_sides_expect(cohort, monkeypatch, most, kept, says):
    monkeypatch.setattr(codes, "_MOST_PAIRED", most)
    monkeypatch.setattr(codes, "_FREQUENT", 4)
    site = cohort.sites[0]
    selection = tuple(np.arange(size, dtype=np.int32) for size in kept)
    asked = make_request(round=2, anchors=(), selection=selection)
    if says:
        with pytest.raises(MessageError, match=says):
            ElasticRound(site.vocabularies, asked, site="a", simulation=True)
        return
    (sent,) = answer(site.tensor, asked).release.arrays
    assert sent.shape == (4 * 3 // 2,)
    exact = cooccurrence(site.tensor.select_features(selection), sigma=SIGMA / 2**30)
    assert_bits([sent], [(exact.total * exact.grid).astype(np.float32)])


def test_state_and_request_are_left_as_they_were(tensor):
    asked = make_request()
    first = answer(tensor, asked)
    before = [factor.copy() for factor in (*first.state.factors, *asked.anchors)]
    answer(tensor, replace(asked, round=2), first.state)
    assert_bits(before, [*first.state.factors, *asked.anchors])


def test_before_the_first_round_a_site_stands_at_round_0_with_a_model_as_large_as_its_data(tensor):
    asked = make_request(solver=SolverSettings(rank=4, gamma=5.0))
    state = initial_state(tensor, asked, np.random.default_rng(0))
    assert (state.round, state.eta) == (0, asked.solver.eta)
    # With float32 factors and sums of a few hundred terms, errors are far below 1e-4.
    assert norm_squared(state.factors) == pytest.approx(tensor.norm_squared(), rel=1e-4)


def test_with_a_relative_weight_the_first_model_has_the_scale_that_explains_most(tensor):
    factors = initial_state(tensor, make_request(), np.random.default_rng(0)).factors
    models = [CPModel((scale * factors[0], *factors[1:])) for scale in (0.9, 1.0, 1.1)]
    left = [model.squared_error(tensor).all_cells for model in models]
    assert left[1] < min(left[0], left[2])
    drawn = np.random.default_rng(0).random((tensor.n_patients, 4), np.float32) + 1e-3
    np.testing.assert_allclose(factors[0] / factors[0][0, 0], drawn / drawn[0, 0], rtol=1e-5)


def test_once_the_global_factors_have_learned_a_sites_patients_are_fitted_to_them(tensor):
    asked = make_request(round=2, rounds=3)
    state = initial_state(tensor, asked, np.random.default_rng(0))
    np.testing.assert_array_equal(state.factors[0], fitted_patients(tensor, asked.anchors))
    assert (state.round, state.eta) == (0, asked.solver.eta)


def test_a_relative_round_begins_at_the_global_factors_and_the_papers_at_the_sites_own(tensor):
    for gamma, begins in ((-1.0, "global"), (5.0, "own")):
        asked = make_request(solver=SolverSettings(rank=4, gamma=gamma))
        rng = np.random.default_rng(0)
        own = SiteState(1, tuple(f + 1 for f in initial_state(tensor, asked, rng).factors), 0.01)
        start = initial_state(tensor, replace(asked, round=2, rounds=3), rng, own)
        wanted = own.factors[1:] if begins == "own" else asked.anchors
        np.testing.assert_array_equal(start.factors[0], own.factors[0])
        assert_bits(start.factors[1:], wanted)


def test_the_numbers_do_not_depend_on_the_threads_of_blas():
    """The tensor is large enough for BLAS to use threads."""
    tensor = synthetic("demo").sites[0].tensor
    asked = make_request(tensor.feature_shape, SolverSettings(rank=12))
    releases = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            releases.append(answer(tensor, asked).release.arrays)
    assert_bits(*releases)


POISSON = {"solver": "psgd", "loss": "poisson", "scale": "counts"}


@pytest.mark.parametrize("how", [{}, {"solver": "psgd"}, POISSON])
def test_sites_and_rounds_have_random_numbers_of_their_own(tensor, how):
    asked = make_request(solver=SolverSettings(rank=4, gamma=0.1, **how))
    assert stream(asked, "a") == [asked.seed, 0xCA978112CA1BBDCA, asked.round]
    first, again = (answer(tensor, asked).release.arrays for _ in range(2))
    assert_bits(first, again)
    others = answer(tensor, asked, site="b"), answer(tensor, replace(asked, seed=1))
    assert not any(np.array_equal(first[0], other.release.arrays[0]) for other in others)


def test_seeded_noise_differs_between_sites_and_rounds(tensor):
    solver = SolverSettings(rank=4, solver="psgd", clip=1.0)
    asked = make_request(solver=solver, privacy=PrivacySettings(privacy="paper", noise_seed=5))

    def noise(asked, site):
        outcome = answer(tensor, asked, site=site)
        return outcome.release.arrays[0] - outcome.state.factors[1]

    drawn = [noise(asked, "a"), noise(asked, "b"), noise(replace(asked, round=2), "a")]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(drawn[one].ravel(), drawn[other].ravel())[0, 1]) < 0.8
        assert not np.allclose(drawn[one], drawn[other])
    with pytest.raises(PrivacyRefusedError, match="noise-seed"):
        answer(tensor, asked, simulation=False)
    own = [Vocabulary(f"m{n}", [*map(str, range(len(f)))]) for n, f in enumerate(asked.anchors)]
    assert ElasticRound(own, replace(asked, round=2), site="a", simulation=True).charged_rounds == 8
    with pytest.raises(ValueError, match="shorter"):  # a release of nothing would cost nothing
        ElasticRound(own, replace(asked, anchors=()), site="a", simulation=True).cost()


def test_patients_scaled_to_norm_one_have_the_same_say(tensor):
    scaled = tensor.scaled_to_unit_patients()
    squares = np.bincount(scaled.indices[:, 0], scaled.values.astype(np.float64) ** 2)
    np.testing.assert_allclose(squares, 1, rtol=1e-6)
    one = answer(tensor, make_request()).release.arrays
    louder = SparseTensor(tensor.indices, tensor.values * np.float32(4), tensor.shape)
    assert_bits(one, answer(louder, make_request()).release.arrays)


def test_off_means_the_same_at_any_size(tensor):
    asked = make_request(solver=SolverSettings(rank=4, relative_l21=0.3, mu_from_round=1))
    doubled = SparseTensor(tensor.indices, tensor.values * np.float32(2), tensor.shape)
    starts = [initial_state(t, asked, np.random.default_rng(0)).factors for t in (tensor, doubled)]
    small, large = (local_settings(asked, start).mu for start in starts)
    assert large == pytest.approx(2 * small)
    columns = np.square(starts[0][0].astype(np.float64)).sum(axis=0)  # the others have norm 1
    assert small == pytest.approx(0.3 * np.sqrt(columns.mean()))
    absolute = SolverSettings(rank=4, relative_l21=0.0, mu=2.0, mu_from_round=1)
    assert local_settings(replace(asked, solver=absolute), starts[0]).mu == 2.0


def test_mu_acts_from_its_round(tensor):
    asked = make_request(solver=SolverSettings(rank=4, relative_l21=0.0, mu=1e3, mu_from_round=2))
    first = answer(tensor, asked)
    assert first.state.factors[0].any()
    assert not answer(tensor, replace(asked, round=2), first.state).state.factors[0].any()


@pytest.mark.parametrize(("rounds", "first"), [(1, 1), (2, 2), (3, 2), (40, 21)])
def test_without_a_round_of_its_own_mu_acts_in_the_second_half(tensor, rounds, first):
    asked = make_request(solver=SolverSettings(rank=4, relative_l21=0.0, mu=1e3), rounds=rounds)
    start = initial_state(tensor, asked, np.random.default_rng(0)).factors
    solvers = [local_settings(replace(asked, round=n), start) for n in range(1, rounds + 1)]
    assert [solver.mu > 0 for solver in solvers] == [n >= first for n in range(1, rounds + 1)]


def test_divergence_names_the_step():
    """Counts that overflow at any step size give an error, never NaN."""
    rng = np.random.default_rng(0)
    huge = SparseTensor.from_coo(rng.integers(0, 5, (60, 3)), np.full(60, 1e37), (5, 5, 5))
    solver = SolverSettings(rank=3, solver="psgd", scale="counts", zeros="none", gamma=0.5)
    with pytest.raises(DivergenceError, match="step size"):
        answer(huge, make_request((5, 5), solver))


@pytest.mark.parametrize("solver", ["exact", "psgd"])
def test_the_papers_step_on_overdispersed_counts_stays_finite(solver):
    """In a plain pass over counts up to 328, eta = .01 and gamma = 5 give NaN."""
    rng = np.random.default_rng(1)
    counts = np.minimum(rng.negative_binomial(0.2, 0.01, 400), 327) + 1
    tensor = SparseTensor.from_coo(rng.integers(0, 12, (400, 3)), counts, (12, 12, 12))
    settings = SolverSettings(rank=5, solver=solver, scale="counts", gamma=5.0, eta=1e-2)
    outcome = answer(tensor, make_request((12, 12), settings))
    assert all(np.isfinite(factor).all() for factor in outcome.state.factors)
    assert outcome.state.eta <= 1e-2


def test_a_tensor_without_nonzeros_is_refused():
    with pytest.raises(DataError, match="no non-zeros"):
        answer(SparseTensor.from_coo([], [], (3, 4, 5)), make_request((4, 5)))


def test_measures_are_those_of_the_sites_own_factors(tensor, monkeypatch):
    for module, now in (("elastic", 1000.0), ("local_fit", 4005.0)):
        monkeypatch.setattr(f"dpfact_flower.site.{module}.time", Clock(now))
    outcome = answer(tensor, make_request())
    factors, measures = outcome.state.factors, outcome.measures
    assert measures.seconds == 3005.0
    expected = CPModel.of(*factors).squared_error(tensor.scaled_to_unit_patients())
    assert measures.error.all_cells == pytest.approx(expected.all_cells, rel=1e-5)
    assert measures.error.nonzeros == pytest.approx(expected.nonzeros, rel=1e-5)


def test_the_error_over_nonzeros_is_measured_now_and_then_and_at_the_end(tensor):
    state, measured = None, []
    for number in (*range(1, 21), *range(999, 1000)):  # which makes an object of its own
        outcome = answer(tensor, make_request(rounds=999, round=number), state)
        state = outcome.state
        if outcome.measures.error.nonzeros is not None:
            measured.append(number)
    assert measured == [1, 2, 10, 20, 999]
