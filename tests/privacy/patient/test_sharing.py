"""Shared noise: honest sites, each site's part, and the cost."""

from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.errors import MessageError, SettingsError
from dpfact_flower.estimation.outlook import outlook_of
from dpfact_flower.privacy import Noise, account
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.patient import share
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.privacy.patient.sharing import Sharing, sharing_of
from dpfact_flower.privacy.patient.statistics import BoundedSum
from dpfact_flower.privacy.secure_sum.masks import width_of
from dpfact_flower.settings import PrivacySettings

SECURE = PrivacySettings(secure_sums=True, epsilon=4.0, patients=10_000)
SITES = [(3, 2), (4, 2), (5, 3), (6, 4), (10, 8), (20, 16), (21, 15), (50, 40)]


def planned(privacy=SECURE, sites=20, rank=10):
    return plan_patient(privacy, sizes=(202, 316), rank=rank, sites=sites)


@pytest.mark.parametrize(("sites", "honest"), SITES)
def test_a_tenth_may_collude_and_a_tenth_be_lost(sites, honest):
    sharing = sharing_of(SECURE, sites)
    assert (sharing.honest, sharing.slots) == (honest, min(2, honest - 1))
    assert 2 * sharing.dropouts < sites - sharing.colluding
    for colluding, number, lost in ((17, 20, 0), (14, 21, 3)):
        assert sharing_of(replace(SECURE, secure_colluding=colluding), number).dropouts == lost
    assert sharing_of(replace(SECURE, secure_dropouts=0), 20).dropouts == 0
    most = min(sites, 4)
    assert sharing_of(replace(SECURE, secure_slots=most), sites).slots == most
    for names in ("a" * (sites - 1), "a" * (sites + 1)):
        with pytest.raises(MessageError, match=f"{len(names)} names for {sites} sites"):
            sharing.terms("job", "", names)


@pytest.mark.parametrize(
    ("sites", "changed", "says"),
    [
        *((sites, {}, f"the number of sites, at least 3; got {sites}$") for sites in (0, 2)),
        (6, {"secure_colluding": 0}, "0 colluding .* 1 lost leave 5"),
        (6, {"secure_colluding": 5}, "5 colluding .* 0 lost leave 1"),
        (6, {"secure_dropouts": 3}, "3 lost leave 2"), (5, {"secure_dropouts": 2}, "2 lost leave"),
        (3, {"secure_slots": 4}, "secure-slots: .* most 3, one per site; got 4"),
    ],
)  # fmt: skip
def test_sharing_that_cannot_hold_is_refused(sites, changed, says):
    with pytest.raises(SettingsError, match=says):
        sharing_of(replace(SECURE, **changed), sites)


def test_honest_sites_have_the_noise_of_the_plan_together():
    for release in planned().releases:
        assert release.own_sigma**2 * 16 == pytest.approx(release.sigma**2)
        assert release.seen_sigma**2 == pytest.approx(20 * release.own_sigma**2)
    asked = replace(release, sensitivity=0.25, sigma=16.0)
    for patients in (2**n for n in range(60)):
        assert asked.question("ab", patients, 2, []).width == width_of(patients, 1 / 16)


@pytest.mark.parametrize(
    ("sites", "epsilon", "alone"),
    [(3, 4.0, 6.0), (6, 4.0, 9.1), (20, 4.0, 22.0), (6, 1.0, 2.155), (20, 1.0, 4.747),
     (3, 8.0, 12.3)],
)  # fmt: skip
def test_alone_costs_as_much_as_a_site_s_own_noise(sites, epsilon, alone):
    guarantee = planned(replace(SECURE, epsilon=epsilon), sites).guarantee()
    assert guarantee.headline.epsilon <= epsilon
    assert guarantee.alone.epsilon == pytest.approx(alone, rel=0.02)
    assert guarantee.alone.claim.endswith("even if all other sites collude")
    unshared = replace(SECURE, secure_sums=False)
    assert (sharing_of(unshared, 6), planned(unshared).guarantee().alone) == (None, None)


def test_slots_are_as_many_as_the_signal_bears():
    assert planned(replace(SECURE, epsilon=1.0)).facts.sharing.slots == 1
    assert planned(replace(SECURE, patients=100_000)).facts.sharing.slots == 2
    assert planned(replace(SECURE, patients=0)).facts.sharing.slots == 2  # unknown
    assert planned(replace(SECURE, epsilon=1.0, secure_slots=3)).facts.sharing.slots == 3


def test_slots_are_used_from_the_epsilon_at_which_they_have_a_good_outlook():
    for epsilon in np.geomspace(2.0, 4.0, 9):
        asked = replace(SECURE, epsilon=float(epsilon))
        with_slots = outlook_of(planned(replace(asked, secure_slots=2))).verdict
        assert (planned(asked).facts.sharing.slots == 2) == (with_slots == "good"), epsilon


def test_noise_is_in_all_slots_and_the_statistic_in_one():
    bounded, sharing = BoundedSum(np.full(4000, 2**40), 1.0, 2.5), Sharing(20, 2, 2, 3)
    made = share(bounded, Noise.from_seed(1), sharing, 1, name="x", row_unit="discharge")
    for slot, row in enumerate(made.values.reshape(3, 4000)):
        noise = row - (2**40 if slot == 1 else 0)
        assert np.abs(noise).max() < 8 * SIGMA
        assert np.std(noise) == pytest.approx(SIGMA, rel=0.05)
    (event,) = made.events
    assert (event.sigma, event.own_sigma, event.count) == (2.5 * 4, 2.5, 12_000)
    assert event.rho == pytest.approx(1 / (2 * 10.0**2))
    assert event.alone.rho == pytest.approx(1 / (2 * 2.5**2))
    assert "noise" not in repr(made)
    assert str(made.values[0]) not in repr(made)
    together = account(made.events, 1e-5)
    assert together.alone.epsilon > together.headline.epsilon
    assert "patient" not in f"{together.headline} {together.alone}"  # rows are discharges


@pytest.mark.slow
def test_the_likelihood_of_a_sum_of_honest_shares_is_that_of_mu():
    """There are 4,000 sums with and 4,000 without a patient, of 16 values and four honest sites."""
    sharing, own, blocks = Sharing(6, 1, 1, 2), 1.5, 4000
    part = np.arange(16) * 1.0
    part *= SIGMA / own / np.linalg.norm(part)  # of norm 1, in units of the grid

    def likelihoods(patient):
        total = np.tile(np.round(part * patient).astype(np.int64), blocks)
        nobody = BoundedSum(np.zeros_like(total), 1.0, own)
        sums = enumerate([BoundedSum(total, 1.0, own), nobody, nobody, nobody])
        made = [share(each, Noise.from_os(), sharing, n % 2, name="x") for n, each in sums]
        slot = sum(each.values.reshape(2, blocks, 16)[0] for each in made)
        scale = np.linalg.norm(part) * SIGMA * np.sqrt(sharing.honest)
        return slot @ part / scale, made[0].events[0]

    without, event = likelihoods(0)
    within, _ = likelihoods(1)
    assert event.noise_multiplier == pytest.approx(3)
    error = np.sqrt(2 / blocks)
    assert within.mean() - without.mean() == pytest.approx(1 / 3, abs=5 * error)
    assert without.std() == pytest.approx(1, abs=5 * error)
    assert within.std() == pytest.approx(1, abs=5 * error)
