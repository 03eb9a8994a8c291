"""What patient mode's releases cost together, and which figure stands for it."""

import math
from dataclasses import replace

import pytest

from dpfact_flower.privacy import PATIENT_CLAIM, ReleaseEvent, account
from dpfact_flower.privacy.conversions import (
    DISCRETE_SLACK,
    GAUSSIAN_DP,
    GAUSSIAN_DP_DISCRETE,
    PROPOSITION_2_8,
    RDP,
    ZCDP_TIGHT,
    epsilon_gaussian,
    epsilon_gaussian_discrete,
    epsilon_zcdp_tight,
    mu_for_epsilon,
)
from dpfact_flower.privacy.noise import SIGMA

MOST = 2_000_000_000
EVENT = ReleaseEvent("round 1, start", 1.0, 2.0, 1000, "patient", "add-remove", PATIENT_CLAIM)


def test_the_headline_is_gaussian_dp_with_the_slack_of_discrete_noise():
    guarantee = account([EVENT] * 4, 1e-5)
    assert [f.accountant for f in guarantee.figures] == [
        GAUSSIAN_DP_DISCRETE, PROPOSITION_2_8, ZCDP_TIGHT, RDP,
    ]  # fmt: skip
    exact = epsilon_gaussian(1.0, 1e-5)
    assert exact < guarantee.headline.epsilon < exact + 2e-6
    assert guarantee.claim == PATIENT_CLAIM
    assert (guarantee.unit, guarantee.neighbours) == ("patient", "add-remove")


def test_every_proven_figure_is_at_least_the_headline():
    headline, *others = [figure.epsilon for figure in account([EVENT], 1e-6).figures]
    assert headline <= min(others)


@pytest.mark.parametrize("epsilon", [0.1, 1, 8, 100])
@pytest.mark.parametrize("delta", [1e-12, 1e-5])
def test_the_slack_is_on_the_safe_side(epsilon, delta):
    mu = mu_for_epsilon(epsilon, delta)
    found = epsilon_gaussian_discrete(mu, delta, 1)
    # (epsilon + s, exp(s) delta) with s the slack: what the noise page proves.
    slack = (3 * MOST + 3200) / (24 * SIGMA**2) * (1 + 1e-12)
    assert slack <= DISCRETE_SLACK
    assert found >= epsilon_gaussian(mu, delta * math.exp(-slack)) + slack


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (replace(EVENT, count=MOST + 1), 1e-5),
        (replace(EVENT, sigma=0.02), 1e-5),  # epsilon beyond 500
        (EVENT, 1e-101),
    ],
)
def test_where_the_proof_ends_tight_zcdp_is_the_headline(event, delta):
    guarantee = account([event], delta)
    assert guarantee.headline.accountant == ZCDP_TIGHT
    assert guarantee.headline.epsilon == epsilon_zcdp_tight(event.rho, delta)
    assert GAUSSIAN_DP_DISCRETE not in {figure.accountant for figure in guarantee.figures}


@pytest.mark.parametrize(("count", "delta"), [(MOST, 1e-5), (1000, 1e-100)])
def test_the_proof_holds_at_its_very_ends(count, delta):
    guarantee = account([replace(EVENT, count=count)], delta)
    assert guarantee.headline.accountant == GAUSSIAN_DP_DISCRETE


def test_the_paper_is_still_printed_by_its_own_conversion():
    event = replace(EVENT, unit="entry", neighbours="replace", claim="claimed")
    figures = [figure.accountant for figure in account([event], 1e-5).figures]
    assert figures == [PROPOSITION_2_8, ZCDP_TIGHT, RDP, GAUSSIAN_DP]
