"""A round of patient mode at a site: its cost, its sum, and its dependencies."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import MessageError
from dpfact_flower.estimation.start import usage_of
from dpfact_flower.privacy import Release, account, replay
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.site.patient import PatientRound, ridge_of
from dpfact_flower.site.store import SiteState
from dpfact_flower.wire.protocol import RoundRequest
from tests.site.federation import CODES, PLANNED, SOLVER


class Kept:
    """A site's stored data, set by a test."""

    def __init__(self, releases: dict[int, Release] | None = None) -> None:
        self._releases = releases or {}
        self.asked: list[int] = []

    @property
    def state(self) -> SiteState | None:
        raise AssertionError("a release may not depend on the site's own factors")

    def release(self, round_number: int) -> Release | None:
        self.asked.append(round_number)
        return self._releases.get(round_number)


def make_request(data, number, privacy=PLANNED, solver=SOLVER, **changes) -> RoundRequest:
    """Return the request for a round of a run, with all fields that it must carry."""
    sizes = data.tensor.feature_shape
    plan = plan_patient(privacy, sizes=sizes, rank=solver.rank)
    planned = plan.release_of(number)
    kind = planned.kind if planned else "finish"
    kept = privacy.codes_kept or sizes
    selection = tuple(np.arange(size, dtype=np.int32) for size in privacy.codes_kept)
    request = RoundRequest(
        job="job", round=number, rounds=plan.rounds, seed=3, solver=solver, privacy=privacy,
        vocabulary=joint_digest(data.vocabularies), rule="patient",
        anchors=initial_factors(kept, solver.rank, 5) if kind in ("refine", "finish") else (),
        selection=() if kind == "codes" else selection,
    )  # fmt: skip
    return replace(request, **changes)


def make_round(data, request, site="site-1", simulation=False) -> PatientRound:
    return PatientRound(data.vocabularies, request, site=site, simulation=simulation)


def plan(data, privacy=PLANNED, rank=4):
    return plan_patient(privacy, sizes=data.tensor.feature_shape, rank=rank)


def own_start(data, values) -> Release:
    """Return a start as the ledger returns it."""
    release = make_round(data, make_request(data, 1)).run(data, Kept()).release
    return replay([values], release.events)


START_ALONE = PrivacySettings(start_share=1.0, refine_rounds=0, bound=0.1)


@pytest.mark.parametrize(
    "privacy", [PLANNED, CODES, START_ALONE], ids=["whole", "codes", "start alone"]
)
def test_what_is_charged_is_what_was_planned_round_for_round(data, privacy):
    whole = make_round(data, make_request(data, 1, privacy)).cost()
    charged = []
    for number in range(1, plan(data, privacy).rounds):
        work = make_round(data, make_request(data, number, privacy))
        assert work.cost() == whole[number - 1 :]  # from this round on
        release = work.run(data, Kept()).release
        assert [array.shape for array in release.arrays] == [(e.count,) for e in release.events]
        charged += release.events
    assert tuple(charged) == whole
    assert account(charged, privacy.delta).headline.epsilon <= privacy.epsilon
    names = [event.name for event in charged]
    assert len(set(names)) == len(names)
    if privacy.refine_rounds:
        assert names[-1] == f"round {len(names)}, refine diagnoses"


def test_the_claim_names_what_a_row_of_the_data_is(data):
    stays, request = replace(data, row_unit="discharge"), make_request(data, 1)
    (event,) = make_round(data, request).run(stays, Kept()).release.events
    assert event.claim == "proven: discharge-level, add or remove one discharge"


def test_seeded_noise_is_the_sites_and_the_rounds_own(data):
    privacy = replace(PLANNED, noise_seed=4)
    drawn = {}
    for number, site, seed in ((2, "a", 3), (2, "b", 3), (3, "a", 3), (4, "a", 3), (2, "a", 5)):
        request = make_request(data, number, privacy, seed=seed)
        work = make_round(data, request, site=site, simulation=True)
        exact = work.bounded(data, plan(data, privacy).release_of(number), Kept())
        again = make_round(data, request, site=site, simulation=True)
        release = work.run(data, Kept()).release
        assert [event.seeded for event in release.events] == [True]
        (sent,) = release.arrays
        assert sent.tobytes() == again.run(data, Kept()).release.arrays[0].tobytes()
        drawn[number, site, seed] = sent - (exact.total * exact.grid)
    first = drawn.pop((2, "a", 3))
    for other in drawn.values():
        shared = min(len(first), len(other))
        assert not np.allclose(first[:shared], other[:shared])


def test_what_is_sent_is_the_sum_and_noise_of_its_sigma(data):
    """The release is close to the exact sum at a very large epsilon, and far from it at 1."""
    for epsilon, close in ((1e6, True), (1.0, False)):
        privacy = replace(PLANNED, epsilon=epsilon)
        for number in (1, 2, 3):
            work = make_round(data, make_request(data, number, privacy))
            planned = plan(data, privacy).release_of(number)
            exact = work.bounded(data, planned, Kept())
            difference = work.run(data, Kept()).release.arrays[0] - exact.total * exact.grid
            spread = float(np.sqrt(np.mean(difference.astype(np.float64) ** 2)))
            assert spread == pytest.approx(planned.sigma, rel=0.4)
            assert (spread < 0.01) == close


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("off", [0.0, 0.5])
def test_the_sum_depends_on_data_request_and_earlier_releases_alone(data, number, off):
    """The sum depends on no name, seed or earlier run, and never requests a state."""
    privacy, solver = replace(CODES, noise_seed=1), replace(SOLVER, relative_l21=off)
    planned = plan(data, privacy).release_of(number)
    request = make_request(data, number, privacy, solver)
    given = {2: make_round(data, make_request(data, 2, privacy, solver), simulation=True)
             .run(data, Kept()).release}  # fmt: skip
    reference = make_round(data, request, simulation=True).bounded(data, planned, Kept(given))
    changes = ({}, {"job": "other"}, {"seed": 99}, {"privacy": replace(privacy, noise_seed=2)})
    for change, site in itertools.product(changes, ("site-1", "another")):
        asked = replace(request, **change)
        work = make_round(replace(data, name="renamed"), asked, site=site, simulation=True)
        work.run(data, Kept(given))
        kept = Kept(given)
        found = work.bounded(data, planned, kept)
        np.testing.assert_array_equal(found.total, reference.total)
        assert (found.sensitivity, found.sigma) == (reference.sensitivity, reference.sigma)
        assert set(kept.asked) <= {2}  # the site's own start
    # Removing a patient changes the sum.
    fewer = replace(data, tensor=data.tensor.select_patients(range(1, data.tensor.n_patients)))
    other = make_round(fewer, request, simulation=True).bounded(fewer, planned, Kept(given))
    moved = (other.total - reference.total).astype(np.float64) * reference.grid
    assert 0 < np.linalg.norm(moved) <= planned.sensitivity * (1 + 1e-9)


def test_labels_and_identifiers_are_not_in_it(data):
    n = data.tensor.n_patients
    told = replace(data, labels=np.ones(n, np.int8), patients=tuple(f"p{i}" for i in range(n)))
    for number in (1, 2):
        planned = plan(data).release_of(number)
        request = make_request(data, number)
        one, other = (make_round(d, request).bounded(d, planned, Kept()) for d in (data, told))
        np.testing.assert_array_equal(one.total, other.total)


@pytest.mark.parametrize(("off", "used"), [(0.0, (np.ones(4), np.ones(4))), (0.5, None)])
def test_without_a_weight_or_a_start_of_its_own_a_site_has_no_ridge(data, off, used):
    request = make_request(data, 2, solver=replace(SOLVER, relative_l21=off))
    assert ridge_of(request, used).tolist() == [0.0] * 4


@pytest.mark.parametrize("off", [0.1, 2.0])
def test_ridge_weighs_a_phenotype_by_its_usage_in_the_released_start(data, off):
    request = make_request(data, 2, solver=replace(SOLVER, relative_l21=off))
    rng = np.random.default_rng(0)
    finite = 0
    for scale in (0.0, 1e-3, 1.0, 1e3):
        values = (scale * np.abs(rng.standard_normal(210))).astype(np.float32)
        for sigma in (1e-3, 1.0, 1e3):
            usage, spread = usage_of(values, request.anchors, sigma)
            ridge = ridge_of(request, (usage, spread))
            spread = np.broadcast_to(spread, (4,))
            average = np.sqrt(sum(max(u, 0) for u in usage) / 4)
            assert ridge.shape == (4,)
            assert not np.isnan(ridge).any()
            for r in range(4):
                if usage[r] <= spread[r]:  # could be noise
                    assert ridge[r] == np.inf
                else:
                    assert ridge[r] == pytest.approx(off * average / np.sqrt(usage[r]))
            finite += np.isfinite(ridge).sum()
    assert finite
    for left, much in ((0, 0), (0, 1), (1, 1)):  # the other columns pad the rank
        factors = tuple(np.where(np.arange(4) < left, each, 0) for each in request.anchors)
        used = np.array([9.0, 1.0, -4.0, 0.0]) * much, np.ones(4)
        ridge = ridge_of(replace(request, anchors=factors), used)
        assert ridge[1:].tolist() == [np.inf] * 3
        assert ridge[0] == (pytest.approx(off * np.sqrt(10) / 3) if much else np.inf)


def test_the_ridge_comes_from_the_sites_released_start_and_moves_the_sum(data):
    request = make_request(data, 2, solver=replace(SOLVER, relative_l21=5.0))
    planned = plan(data).release_of(2)
    work = make_round(data, request)
    without = work.bounded(data, planned, Kept())
    strong = np.full(210, 1e6, np.float32)
    weighed = work.bounded(data, planned, Kept({1: own_start(data, strong)}))
    assert not np.array_equal(without.total, weighed.total)
    elsewhere = work.bounded(data, planned, Kept({2: own_start(data, strong)}))
    np.testing.assert_array_equal(without.total, elsewhere.total)


UNPLANNED = {
    "share": ({"privacy": PrivacySettings(refine_rounds=2, bound=0.1)}, "must have been planned"),
    "rounds": ({"privacy": PrivacySettings(start_share=0.7)}, "must have been planned"),
    "a round more": ({"rounds": 7}, "a plan of 6 rounds; the request has 7"),
    "a round less": ({"rounds": 5}, "a plan of 6 rounds; the request has 5"),
    "factors": ({"anchors": initial_factors((9, 12), 4, 5)}, r"\(start\) takes no global factors"),
    "no factors": ({"round": 2}, r"request: round 2 \(refine\) needs the global factors"),
    "a selection": ({"selection": (np.arange(6),) * 2}, r"selection of no codes, got \(6, 6\)"),
    "usages": ({"usages": np.ones((1, 2, 4))}, r"round 1 \(start\) needs no usages of slots"),
}


@pytest.mark.parametrize(("changes", "says"), UNPLANNED.values(), ids=UNPLANNED)
def test_what_is_not_planned_is_refused(data, changes, says):
    request = replace(make_request(data, 1), **changes)
    with pytest.raises(MessageError, match=says):
        make_round(data, request)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_patient_alone_adds_at_most_the_sensitivity(data, number):
    planned, request = plan(data, CODES).release_of(number), make_request(data, number, CODES)
    moved = []
    for patient in range(20):
        alone = replace(data, tensor=data.tensor.select_patients([patient]), labels=None)
        found = make_round(alone, request).bounded(alone, planned, Kept())
        moved.append(np.linalg.norm(found.total * found.grid))
    assert 0.5 * planned.sensitivity < max(moved) <= planned.sensitivity


@pytest.mark.parametrize("end", [13, 14])
def test_a_code_beyond_a_modes_list_is_refused(data, end):
    selection = (np.arange(6, dtype=np.int32), np.arange(end - 8, end, dtype=np.int32))
    with pytest.raises(MessageError, match=r"selection: mode 2 needs positions in \[0, 12\)"):
        make_round(data, make_request(data, 2, CODES, selection=selection))
