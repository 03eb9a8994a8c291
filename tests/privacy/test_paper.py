import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpfact_flower.errors import PrivacyRefusedError, SettingsError
from dpfact_flower.privacy import PAPER_CLAIM, SEEDED_CLAIM, Noise, account, release_unprotected
from dpfact_flower.privacy.noise_source import _standard_normal
from dpfact_flower.privacy.paper import perturb, psgd_sensitivity
from dpfact_flower.privacy.release import Share, claim_of
from dpfact_flower.settings import PrivacySettings, SolverSettings

ALPHA = 1e-6
RANK = 100
MODES = ("procedures", "diagnoses")


def solver(**changes):
    return SolverSettings(**{"solver": "psgd", "tau": 2, "eta": 1e-2, "clip": 5.0, **changes})


def bounded(rows=(200, 200), **changes):
    """Return factors of 20,000 values each."""
    rng = np.random.default_rng(5)
    return tuple(rng.random((n, RANK), dtype=np.float32) for n in rows), solver(**changes)


def release_of(factors, rho, noise=None, number=1, modes=MODES):
    return perturb(*factors, rho, noise or Noise.from_os(), round_number=number, modes=modes)


def noise_in(release, factors):
    pairs = zip(release.arrays, factors[0], strict=True)
    return np.concatenate([(noisy - clean.astype(float)).ravel() for noisy, clean in pairs])


def has_variance(values, variance):
    """Test the variance of mean-zero Gaussian values by chi-square."""
    return ALPHA / 2 < stats.chi2.cdf((values**2).sum() / variance, len(values)) < 1 - ALPHA / 2


# sensitivity 0.2 and 10. At rho = 1/2, sigma equals sensitivity, so 1/8 is tested too.
@pytest.mark.parametrize(("clip", "rho"), [(5.0, 0.5), (250.0, 0.5), (5.0, 0.125), (250.0, 0.125)])
def test_noise_has_variance_sensitivity_squared_over_two_rho(clip, rho):
    factors = bounded(clip=clip)
    sensitivity = 2 * 2 * clip * 1e-2
    variance = sensitivity**2 / (2 * rho)
    release = release_of(factors, rho)
    noise = noise_in(release, factors)
    assert len(noise) == 40_000
    assert has_variance(noise, variance)
    for wrong in (variance**2, math.sqrt(variance), sensitivity**2 / rho, sensitivity / (2 * rho)):
        assert math.isclose(wrong, variance) or not has_variance(noise, wrong)
    for event, half in zip(release.events, (noise[:20_000], noise[20_000:]), strict=True):
        assert event.sigma**2 == pytest.approx(variance)
        assert has_variance(half, event.sigma**2)
        assert event.rho == pytest.approx(rho)


def test_noise_is_gaussian_and_independent():
    factors = bounded()
    sigma = release_of(factors, 0.125).events[0].sigma
    samples = [noise_in(release_of(factors, 0.125, number=n), factors) / sigma for n in (1, 2)]
    for sample in samples:
        assert stats.kstest(sample, "norm").pvalue > ALPHA
        assert abs(sample.mean()) < -stats.norm.ppf(ALPHA / 2) / math.sqrt(len(sample))
    # Two releases, the two factors of one, and neighbouring values of one.
    first, second = samples
    for a, b in [(first, second), (first[:20_000], first[20_000:]), (first[:-1], first[1:])]:
        assert abs((a * b).sum() / math.sqrt(len(a))) < -stats.norm.ppf(ALPHA / 2)


def test_normal_values_invert_the_tail_to_the_last_bit():
    words = np.array([0, 1, 2, 3, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1], np.uint64)
    values = _standard_normal(words)
    assert np.isfinite(values).all()
    tails = ((words >> np.uint64(1)).astype(float) + 0.5) / 2.0**64
    assert stats.norm.sf(np.abs(values)) == pytest.approx(tails, rel=1e-9)
    # The lowest bit is the sign, so words form pairs of opposite values.
    assert np.array_equal(values[::2], -values[1::2])
    assert 9.1 < abs(values[0]) < 9.3


def test_operating_system_noise_does_not_repeat():
    draws = []
    for _ in range(3):
        np.random.seed(0)  # noqa: NPY002 - whatever the caller seeds must not matter
        draws.append(Noise.from_os().gaussian((50,), 1.0))
    assert len({value for draw in draws for value in draw}) == 150


def test_seeded_noise_repeats_and_streams_differ():
    def draw(*key):
        return Noise.from_seed(*key).gaussian((50,), 1.0)

    assert np.array_equal(draw(7, 2, 3), draw(7, 2, 3))
    keys = [(7,), (8,), (7, 1), (7, 1, 2), (7, 2, 1), (7, 0), (7 + 2**32,)]
    for one, other in itertools.combinations(keys, 2):
        assert not np.intersect1d(draw(*one), draw(*other)).size


def test_seeded_release_says_so():
    release = release_of(bounded(), 0.5, Noise.from_seed(3))
    assert all(event.seeded for event in release.events)
    assert claim_of(release.events) == f"{SEEDED_CLAIM} ({PAPER_CLAIM})"
    assert claim_of(release.events) in str(account(release.events, 1e-4))


@pytest.mark.parametrize("seed", [0, 4])
def test_a_real_site_refuses_a_seed(seed):
    seeded, unseeded = PrivacySettings(noise_seed=seed), PrivacySettings()
    with pytest.raises(PrivacyRefusedError, match="simulation only"):
        Noise.from_settings(seeded, stream=(1, 2), simulation=False)
    made = Noise.from_settings(seeded, stream=(1, 2), simulation=True)
    assert made.seeded
    assert np.array_equal(made.gaussian((5,), 1.0), Noise.from_seed(seed, 1, 2).gaussian((5,), 1.0))
    for simulation in (True, False):
        assert not Noise.from_settings(unseeded, stream=(), simulation=simulation).seeded


def test_sensitivity_is_two_tau_l_eta():
    assert psgd_sensitivity(3, 4.0, 0.05) == pytest.approx(2 * 3 * 4.0 * 0.05)
    for event in release_of(bounded(tau=3, clip=4.0, eta=0.05), 1.0).events:
        assert event.sensitivity == psgd_sensitivity(3, 4.0, 0.05)


@pytest.mark.parametrize("changes", [{"clip": 0.0}, {"clip": 0.0, "solver": "exact"}])
def test_without_a_clip_there_is_no_sensitivity(changes):
    with pytest.raises(SettingsError, match="sensitivity"):
        release_of(bounded(**changes), 1.0)
    with pytest.raises(SettingsError, match="clip above 0"):
        PrivacySettings(privacy="paper").check_solver(solver(**changes))
    PrivacySettings(privacy="none").check_solver(solver(**changes))
    PrivacySettings(privacy="paper").check_solver(solver())


def test_release_records_one_event_a_factor():
    release = release_of(bounded(rows=(3, 7)), 1e-3, number=4)
    assert [event.name for event in release.events] == ["round 4, procedures", "round 4, diagnoses"]
    assert [event.count for event in release.events] == [3 * RANK, 7 * RANK]
    assert {(event.unit, event.neighbours) for event in release.events} == {("entry", "replace")}
    assert claim_of(release.events) == PAPER_CLAIM
    assert len(release_of(bounded(rows=(3,)), 1.0, modes=MODES[:1]).events) == 1
    with pytest.raises(ValueError, match="zip"):
        release_of(bounded(rows=(3,)), 1.0)


def test_unprotected_release_says_that_nothing_protects_it():
    factors = bounded(rows=(3, 4))[0]
    release = release_unprotected(factors)
    assert release.events == ()
    assert claim_of(release.events) == "none: no privacy guarantee"
    for sent, given in zip(release.arrays, factors, strict=True):
        assert np.array_equal(sent, given)
    with pytest.raises(SettingsError, match="nothing was released"):
        account(release.events, 1e-4)


def test_a_release_does_not_change_with_the_array_it_came_from():
    array = np.zeros((3, RANK), np.float32)
    release = release_unprotected((array,))
    array += 1
    assert not release.arrays[0].any()
    with pytest.raises(ValueError, match="read-only"):
        release.arrays[0][0, 0] = 1


SECRET = 1234.5678


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_unfit_factors_are_refused_without_quoting_them(value):
    factors = (np.full((2, 3), SECRET), np.array([[SECRET, value]]))
    for make in (release_unprotected, lambda f: release_of((f, solver()), 1.0)):
        with pytest.raises(SettingsError, match="not finite, or too large for float32") as error:
            make(factors)
        assert "1234" not in str(error.value)


def test_reprs_show_no_values():
    share = Share(np.full(6, int(SECRET)), ())
    for shown in (release_unprotected((np.full((2, 3), SECRET),)), share, Noise.from_seed(1234)):
        assert "1234" not in repr(shown)
    assert repr(shown) == "Noise(seeded=True)"


@pytest.mark.parametrize(
    ("rho", "match"), [(0.0, "^rho:"), (math.nan, "^rho:"), (1e-90, "too large for")]
)
def test_bad_release_arguments_are_refused(rho, match):
    with pytest.raises(SettingsError, match=match):
        release_of(bounded(rows=(3, 4)), rho)
