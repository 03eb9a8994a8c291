import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import account, conversions
from dpfact_flower.privacy.patient import plan as planning
from dpfact_flower.privacy.patient.plan import _MOST_NOISE, plan_patient, total_rho
from dpfact_flower.privacy.patient.statistics import code_counts, cooccurrence, refinement
from dpfact_flower.privacy.patient.strength import Facts
from dpfact_flower.privacy.release import PATIENT_CLAIM, SEEDED_CLAIM, ReleaseEvent
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.triangle import whole_size

SIZES = (202, 316)


def plan(sizes=SIZES, rank=50, sites=6, **changes):
    values = {"epsilon": 4.0, "delta": 1e-5, "patients": 40_662, **changes}
    return plan_patient(PrivacySettings(**values), sizes=sizes, rank=rank, sites=sites)


@given(
    epsilon=st.floats(math.log(0.1), math.log(1e6)).map(math.exp),
    delta=st.floats(math.log(1e-12), math.log(0.1)).map(math.exp),
    share=st.floats(0.01, 0.99), rounds=st.integers(1, 30), modes=st.integers(1, 4),
    codes=st.booleans(),
)  # fmt: skip
def test_the_accountant_finds_no_more_than_epsilon(epsilon, delta, share, rounds, modes, codes):
    made = plan(
        sizes=(40,) * modes, rank=7, epsilon=epsilon, delta=delta, start_share=share,
        refine_rounds=rounds, codes="x".join(["30"] * modes) if codes else "",
    )  # fmt: skip
    found = account([r.event("abcd", seeded=False) for r in made.releases], delta).headline
    assert found.accountant in {conversions.GAUSSIAN_DP_DISCRETE, conversions.ZCDP_TIGHT}
    assert found.epsilon <= epsilon
    # At a larger delta, epsilon is almost 0 in any case.
    if epsilon < 400 and delta < 0.5 * epsilon:
        assert found.accountant == conversions.GAUSSIAN_DP_DISCRETE
        assert found.epsilon >= epsilon * (1 - 1e-6)  # the whole budget is used
    assert made.guarantee().headline.epsilon == found.epsilon


def test_the_budget_is_divided_as_asked():
    made = plan(start_share=0.6, refine_rounds=3, codes="100x150", codes_share=0.1)
    total, rhos = total_rho(4.0, 1e-5), [release.rho for release in made.releases]
    shares = [0.1, 0.9 * 0.6, *[0.9 * 0.4 / 6] * 6]
    assert rhos == pytest.approx([share * total for share in shares])
    assert sum(rhos) == pytest.approx(total, rel=1e-14)
    few = plan(sizes=(202,), start_share=0.6, refine_rounds=1).releases
    assert [release.rho for release in few] == pytest.approx([0.6 * total, 0.4 * total])


def test_schedule_of_a_run():
    made = plan(start_share=0.5, refine_rounds=2, bound=0.3, codes="100x150")
    assert [r.kind for r in made.releases] == ["codes", "start", *["refine"] * 4]
    assert [r.mode for r in made.releases] == [None, None, 0, 1, 0, 1]
    assert [r.round for r in made.releases] == [1, 2, 3, 4, 5, 6]
    assert [r.sensitivity for r in made.releases] == [1.0, 1.0, *[0.3] * 4]
    assert made.rounds == 7
    assert made.release_of(7) is None
    assert made.release_of(0) is None
    assert made.release_of(4) is made.releases[3]
    assert made.start is made.releases[1]
    assert (made.settings.start_share, made.settings.refine_rounds) == (0.5, 2)


@pytest.mark.parametrize("sizes", [(2,), (5,), (5, 4), (3, 4, 2)])
def test_counts_are_those_of_the_statistics(sizes):
    rng = np.random.default_rng(0)
    dense = rng.poisson(0.3, (6, *sizes)) + (np.arange(6) == 0).reshape(-1, *[1] * len(sizes))
    tensor = SparseTensor.from_coo(np.argwhere(dense), dense[dense > 0], dense.shape)
    factors = tuple(rng.random((n, 3)) for n in sizes)
    made = plan(sizes=sizes, rank=3, refine_rounds=1, codes="x".join(map(str, sizes)))
    assert len(code_counts(tensor, sigma=1.0).total) == made.releases[0].count
    assert len(cooccurrence(tensor, sigma=1.0).total) == made.start.count
    for release in made.releases[2:]:
        found = refinement(tensor, factors, release.mode, ridge=np.zeros(3), bound=0.1, sigma=1.0)
        assert len(found.total) == release.count == sizes[release.mode] * 3 + whole_size(3)
    made = plan(refine_rounds=1, codes="20x30")  # which shrinks later releases and not the count
    assert [r.count for r in made.releases] == [518, 50 * 49 // 2, 20 * 50 + 1275, 30 * 50 + 1275]


def test_events_carry_the_claim_and_the_modes(monkeypatch):
    made = plan(refine_rounds=1)
    events = [r.event(["procedures", "diagnoses"], seeded=False) for r in made.releases]
    names = ["round 1, start", "round 2, refine procedures", "round 3, refine diagnoses"]
    for event, name, release in zip(events, names, made.releases, strict=True):
        numbers = release.sensitivity, release.sigma, release.count
        assert event == ReleaseEvent(name, *numbers, "patient", "add-remove", PATIENT_CLAIM)
        assert event.rho == pytest.approx(release.rho, rel=1e-14)
    assert made.guarantee().claim == PATIENT_CLAIM
    monkeypatch.setattr(planning, "account", lambda events, _: [event.name for event in events])
    assert made.guarantee() == [names[0], "round 2, refine mode 1", "round 3, refine mode 2"]
    assert SEEDED_CLAIM in account([r.event(names, seeded=True) for r in made.releases], 1e-5).claim


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 1000.0])
@pytest.mark.parametrize(
    "given_", [{}, {"start_share": 0.4}, {"refine_rounds": 0}, {"secure_sums": True}]
)
def test_a_site_finds_the_servers_schedule(epsilon, given_):
    settings = PrivacySettings(epsilon=epsilon, patients=40_662, **given_)
    server = plan_patient(settings, sizes=SIZES, rank=50, sites=6)
    site = plan_patient(replace(server.settings, patients=0), sizes=SIZES, rank=50)
    assert site.releases == server.releases
    assert site.rounds == server.rounds
    assert replace(site.settings, patients=40_662) == server.settings


@pytest.mark.parametrize(
    ("epsilon", "rounds"),
    [(1.0, 1), (2.0, 1), (4.0, 1), (8.0, 3), (32.0, 9), (200.0, 30), (300.0, 38), (1e6, 40)],
)
def test_rounds_at_the_size_of_the_papers_cohort(epsilon, rounds):
    made = plan(epsilon=epsilon)
    assert plan(epsilon=8.0, rank=10, patients=4000).settings.refine_rounds == 3
    assert plan(epsilon=epsilon, refine_rounds=1).settings.refine_rounds == 1
    assert made.settings.refine_rounds == rounds
    assert made.settings.start_share == 0.7


def test_refinements_are_averaged_unless_there_is_signal_in_plenty(monkeypatch):
    assert plan(epsilon=1.0).memory == 0.5
    assert plan(epsilon=1e5).memory == 0.0
    assert (plan(patients=0).memory, plan(patients=0).facts.signal(1.0)) == (0.5, 0.0)
    assert plan(epsilon=832.0, codes="100x150", codes_share=0.5).memory == 0.5  # signal 697
    for signal, memory in ((999.9, 0.5), (1000.0, 0.0)):
        monkeypatch.setattr(Facts, "signal", lambda *_, signal=signal: signal)
        assert plan().memory == memory


@pytest.mark.parametrize(("share", "rounds"), [(0.0, 0), (1.0, -1), (1.0, 0)])
def test_a_run_without_refinement_spends_all_on_the_start(share, rounds):
    made = plan(start_share=share, refine_rounds=rounds)
    assert [(r.kind, r.mode) for r in made.releases] == [("start", None)]
    assert (made.settings.start_share, made.settings.refine_rounds, made.rounds) == (1.0, 0, 2)
    assert made.guarantee().headline.epsilon == pytest.approx(4.0, rel=1e-6)


def test_beyond_the_proof_for_discrete_noise_tight_zcdp_is_planned():
    found = plan(epsilon=1e4).guarantee().headline
    assert found.accountant == conversions.ZCDP_TIGHT
    assert found.epsilon == pytest.approx(1e4, rel=1e-9)
    for epsilon, delta in ((2.0000021e-6, 1e-5), (2.0000021e-6, 1.04e-4), (7.437416e-4, 1.52e-7)):
        mu = math.sqrt(2 * total_rho(epsilon, delta))  # by zCDP if rounding hides the proof
        assert 0.9 * epsilon < conversions.epsilon_gaussian_discrete(mu, delta, 3) <= epsilon
    for share in (0.5, 1.5, 2.0):
        with pytest.raises(SettingsError, match="must exceed 2e-06"):
            total_rho(share * conversions.DISCRETE_SLACK, 1e-5)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"rank": 0}, "rank"),
        ({"sizes": (0, 5)}, "sizes"), ({"sizes": (1,)}, "least 2 c"), ({"sizes": ()}, "codes"),
        ({"start_share": 1.0, "refine_rounds": 1}, "start-share"),
        ({"start_share": 0.5, "refine_rounds": 0}, "refine-rounds"),
        *(({"codes": codes}, f"need one per mode, up to 202x316; got '{codes}'")
          for codes in ("203x316", "202x317", "1", "202x316x2")),
        ({"start_share": 1e-80, "refine_rounds": 1}, "noise of more than"),
        ({"sizes": (9990, 9990), "rank": 1000, "refine_rounds": 100}, r"refine-rounds.*2,\d+,"),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_are_refused(changes, names):
    with pytest.raises(SettingsError, match=names):
        plan(**changes)


def test_signal_that_is_left_over_or_more_patients_of_a_code_go_into_a_wider_bound():
    assert plan(epsilon=1.0).settings.bound == 0.1
    assert 0.1 < plan(epsilon=8.0).settings.bound < plan(epsilon=16.0).settings.bound < 1
    assert plan(epsilon=1e5).settings.bound == 1
    assert plan(epsilon=1e5, bound=0.2).settings.bound == 0.2
    assert plan(epsilon=1e5, patients=0, sites=0).settings.bound == 0.1
    bound = plan(epsilon=8.0).settings.bound
    assert plan(epsilon=8.0, sizes=(101, 316)).settings.bound > bound
    assert plan(epsilon=8.0, rank=10).settings.bound == pytest.approx(bound)
    counted = plan(epsilon=8.0, codes="100x150", codes_share=0.5)
    noise = math.sqrt(150 * 6 / total_rho(8.0, 1e-5))  # in a column of the larger mode, six times
    assert counted.settings.bound == pytest.approx(0.1 * 40_662 / noise / (100 + 150))


@pytest.mark.parametrize(
    ("largest", "beyond", "says"),
    [
        (((20_000,), 2), ((20_001,), 2), "200,010,000 values, but the limit is 200,000,000"),
        (((100,), 3950), ((100,), 3951), "rank: 3951 makes .* 16,005,501 .* limit is 16,000,000"),
        (((6000,), 2000), ((6001,), 2000), "rank: 2000 makes .* 16,002,000 .* limit is 16,000,000"),
        (((17_000,), 894), ((17_000,), 895), "rank: 895 makes .* the limit is 16,000,000"),
    ],
)
def test_what_is_too_large_for_a_site_is_known_before_it_reads_a_patient(largest, beyond, says):
    assert max(release.count for release in plan(*largest).releases) <= 200_000_000
    with pytest.raises(SettingsError, match=says):
        plan(*beyond)


@pytest.mark.parametrize("delta", [1e-5, 1e-99, 1e-300])
def test_a_spent_budget_has_no_room_for_another_release(delta):
    """The remainder from rounding would allow a hundred thousand measurements of reply times."""
    for cap in (0.5, 4.0, 500.0):
        spent = plan(epsilon=cap).guarantee().rho
        mu = math.sqrt(2 * spent + _MOST_NOISE**-2)
        assert conversions.epsilon_gaussian_discrete(mu, 1e-5, 10**6) > cap
    with pytest.raises(SettingsError, match="noise of more than 10000 patients"):
        plan(epsilon=2.1e-6, delta=delta, start_share=0.01, refine_rounds=100, bound=0.001)
    most = replace(plan().start, sensitivity=0.5, sigma=5000.0, count=2_000_000_000)
    planning._check_releases(PrivacySettings(), [most])
    for changed in ({"sigma": 5000.1}, {"count": 2_000_000_001}):
        with pytest.raises(SettingsError, match=r"10000 patients|2,000,000,001 .* 2,000,000,000;"):
            planning._check_releases(PrivacySettings(), [replace(most, **changed)])
