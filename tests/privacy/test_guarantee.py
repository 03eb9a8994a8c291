import json
import math
import re
from dataclasses import replace
from functools import partial

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpfact_flower import privacy
from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import PAPER_CLAIM, PATIENT_CLAIM, ReleaseEvent, account, conversions
from dpfact_flower.privacy.conversions import (
    DISCRETE_SLACK,
    GAUSSIAN_DP,
    GAUSSIAN_DP_DISCRETE,
    PROPOSITION_2_8,
    RDP,
    ZCDP_TIGHT,
    log_delta_gaussian,
    root_of,
    sigma_of,
)
from dpfact_flower.privacy.guarantee import accountants, delta_warning
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.paper import paper_rho
from dpfact_flower.settings import PrivacySettings

ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
CLOSE = 1e-9  # relative; the functions reach about 1e-11

# Uniform in the exponent, so every magnitude is tried equally often.
deltas = st.floats(math.log(1e-12), math.log(0.5)).map(math.exp)
epsilons = st.floats(math.log(1e-3), math.log(100)).map(math.exp)
rhos = st.floats(math.log(1e-8), math.log(100)).map(math.exp)


def everywhere(*strategies):
    return lambda test: settings(max_examples=200)(given(*strategies)(test))


def made(sigma, *, sensitivity=1.0, **changes):
    """Return an event from JSON, as a ledger does, so no string is the program's own object."""
    values = {"count": 10, "unit": "entry", "neighbours": "replace", "claim": PAPER_CLAIM}
    return ReleaseEvent("round 1", sensitivity, sigma, **json.loads(json.dumps(values | changes)))


# --- Gaussian DP against exact arithmetic and libraries -------------------------------------------


def delta_to_50_digits(mu, epsilon):
    with mpmath.workdps(50):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        tail = mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)
        return mpmath.ncdf(-epsilon / mu + mu / 2) - tail


@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-4, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 100.0, 1000.0])
def test_gaussian_dp_against_fifty_digits(epsilon, delta):
    mu = conversions.mu_for_epsilon(epsilon, delta)
    exact = delta_to_50_digits(mu, epsilon)
    assert float(exact / mpmath.mpf(delta)) == pytest.approx(1, rel=CLOSE)
    assert math.exp(log_delta_gaussian(mu, epsilon)) == pytest.approx(float(exact), rel=CLOSE)


@pytest.mark.parametrize("mu", [1e-5, 1e-2, 1.0, 75.0, 1e4])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-6, 0.999])
def test_epsilon_gaussian_at_the_extremes(mu, delta):
    epsilon = conversions.epsilon_gaussian(mu, delta)
    ratio = float(delta_to_50_digits(mu, epsilon) / mpmath.mpf(delta))
    assert ratio <= 1 if epsilon == 0 else ratio == pytest.approx(1, rel=CLOSE)


def test_conversions_hold_where_floats_run_out():
    assert log_delta_gaussian(1.3e-17, 1.7e-9) < math.log(1e-100)
    assert conversions.epsilon_gaussian(1.3e-17, 1.7e-9) == 0
    assert 0 < conversions.mu_for_epsilon(1.3e-17, 1.7e-9) < 1e-8
    assert conversions.mu_for_epsilon(1e-300, math.erf(math.sqrt(0.5))) == pytest.approx(2)
    mu = 325426349.4510599
    assert conversions.epsilon_gaussian(mu, 1.1674214882176728e-11) == pytest.approx(mu**2 / 2)
    assert conversions.epsilon_zcdp_tight(5.6548777069518615e-18, 0.8887461977124194) == 0
    assert conversions.epsilon_zcdp_tight(5e-324, 1e-300) < 1e-150
    deltas = (1e-300, 1e-308, 1e-310, 5e-324)  # no float holds the inverse of some
    values = [conversions.epsilon_zcdp_tight(0.1, delta) for delta in deltas]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(2 * math.sqrt(0.1 * -math.log(5e-324)), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("multipliers", "delta"),
    [([7.0] * 30, 1e-5), ([40.0] * 20 + [20.0] * 20, 1e-4), ([1.2, 0.9, 3.0], 1e-9)],
)
def test_composition_against_privacy_loss_distributions(multipliers, delta):
    interval = 1e-4
    theirs = pld.PLDAccountant(ADD_OR_REMOVE, value_discretization_interval=interval)
    for multiplier in multipliers:
        theirs.compose(dp_accounting.GaussianDpEvent(multiplier))
    ours = figure(account([made(multiplier) for multiplier in multipliers], delta), GAUSSIAN_DP)
    # PLD rounds each loss up to its grid, so it errs on one side, by at most a cell per event.
    upper = theirs.get_epsilon(delta)
    assert ours <= upper * (1 + 1e-6)
    assert upper <= ours + interval * len(multipliers)


# --- zCDP -----------------------------------------------------------------------------------------


@everywhere(rhos, deltas)
def test_tight_zcdp_is_the_best_order_of_proposition_12_and_between_the_others(rho, delta):
    alpha = 1 + np.logspace(-9, 13, 40_001)
    orders = alpha * rho + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    best = max(0.0, orders.min())
    ours = conversions.epsilon_zcdp_tight(rho, delta)
    assert ours <= best * (1 + CLOSE) + 1e-12
    assert ours >= best * (1 - 1e-5) - 1e-5
    assert conversions.epsilon_gaussian(math.sqrt(2 * rho), delta) <= ours * (1 + CLOSE)
    assert ours <= conversions.epsilon_proposition_2_8(rho, delta)


# --- The paper ------------------------------------------------------------------------------------


@pytest.mark.slow
@everywhere(epsilons, deltas, st.integers(1, 1000), st.integers(1, 5))
def test_a_plan_claims_the_epsilon_it_was_made_for(epsilon, delta, rounds, factors):
    run = PrivacySettings(privacy="paper", epsilon=epsilon, delta=delta)
    rho = paper_rho(run, rounds, factors)
    claimed = account([made(sigma_of(rho, 1.0))] * (rounds * factors), delta).headline
    assert claimed.accountant == PROPOSITION_2_8
    assert epsilon * (1 - CLOSE) <= claimed.epsilon <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "as_stated", "by_proposition"), [(1.2, 20, 18), (1.9, 49, 44), (1.7, 39, 35)]
)
def test_rounds_behind_the_papers_epsilons(epsilon, as_stated, by_proposition):
    """The paper's numbers of rounds, at rho = 1e-3 per factor and round and delta = 1e-4."""
    rho, delta, rounds = 1e-3, 1e-4, range(1, 100)
    log_inverse = 4 * math.log(10)
    assert as_stated == round(epsilon**2 / (8 * rho * log_inverse))
    of_round = [made(sigma_of(rho, 1.0))] * 2
    longest = max(n for n in rounds if account(of_round * n, delta).headline.epsilon <= epsilon)
    by_hand = (math.sqrt(log_inverse + epsilon) - math.sqrt(log_inverse)) ** 2 / (2 * rho)
    assert longest == by_proposition == int(by_hand)


# --- Guarantees -----------------------------------------------------------------------------------


def figure(guarantee, accountant):
    return next(f.epsilon for f in guarantee.figures if f.accountant == accountant)


@everywhere(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(1, 100)), min_size=1, max_size=20), deltas
)
def test_account_adds_rho_and_squares_of_mu(releases, delta):
    events = [made(sigma, sensitivity=sensitivity) for sensitivity, sigma in releases]
    spent = account(events, delta)
    assert spent.rho == pytest.approx(sum(s**2 / (2 * sigma**2) for s, sigma in releases))
    assert spent.mu == pytest.approx(math.sqrt(sum((s / sigma) ** 2 for s, sigma in releases)))
    assert spent.releases == len(events)
    assert figure(spent, ZCDP_TIGHT) == conversions.epsilon_zcdp_tight(spent.rho, delta)
    assert figure(spent, GAUSSIAN_DP) == conversions.epsilon_gaussian(spent.mu, delta)
    assert spent.headline.epsilon == conversions.epsilon_proposition_2_8(spent.rho, delta)


def test_nothing_prints_an_epsilon_without_the_claim():
    guarantee = account([made(20.0)] * 40, 1e-4)
    printed = [json.dumps(guarantee.to_dict())]
    for one in (guarantee, *guarantee.figures):
        printed += [str(one), repr(one), f"{one}", str([one])]
    for text in printed:
        assert PAPER_CLAIM in text
        assert "epsilon" in text
        assert "0.0001" in text
    with pytest.raises(TypeError):
        f"{guarantee.headline:.2f}"


@everywhere(st.floats(0.5, 1e4), deltas)
def test_printed_epsilon_is_never_below_the_computed_one(sigma, delta):
    for one in account([made(sigma)], delta).figures:
        printed = float(re.search(r"epsilon (\S+) at", str(one))[1])
        assert one.epsilon * (1 - CLOSE) <= printed <= one.epsilon * 1.00101


# --- Discrete noise: patient mode's figure -----------------------------------------

MOST = 2_000_000_000
START = ReleaseEvent("round 1, start", 1.0, 2.0, 1000, "patient", "add-remove", PATIENT_CLAIM)


def test_the_headline_is_gaussian_dp_with_the_slack_of_discrete_noise():
    guarantee = account([START] * 4, 1e-5)
    assert [f.accountant for f in guarantee.figures] == [
        GAUSSIAN_DP_DISCRETE, PROPOSITION_2_8, ZCDP_TIGHT, RDP,
    ]  # fmt: skip
    exact = conversions.epsilon_gaussian(1.0, 1e-5)
    assert exact < guarantee.headline.epsilon < exact + 2e-6
    assert guarantee.headline.epsilon <= min(f.epsilon for f in guarantee.figures)
    assert guarantee.claim == PATIENT_CLAIM
    assert (guarantee.unit, guarantee.neighbours) == ("patient", "add-remove")


@pytest.mark.parametrize("epsilon", [0.1, 1, 8, 100])
@pytest.mark.parametrize("delta", [1e-12, 1e-5])
def test_the_slack_is_on_the_safe_side(epsilon, delta):
    mu = conversions.mu_for_epsilon(epsilon, delta)
    found = conversions.epsilon_gaussian_discrete(mu, delta, 1)
    # (epsilon + s, exp(s) delta) with the slack s, as proven on the page about noise.
    slack = (3 * MOST + 3200) / (24 * SIGMA**2) * (1 + 1e-12)
    assert slack <= DISCRETE_SLACK
    assert found >= conversions.epsilon_gaussian(mu, delta * math.exp(-slack)) + slack


@pytest.mark.parametrize(
    ("inside", "beyond"),
    [({"count": MOST}, {"count": MOST + 1}), ({"delta": 1e-100}, {"delta": 1e-101}),
     ({"epsilon": 499.99}, {"epsilon": 500.0}), ({"epsilon": 1.0}, {"epsilon": 1500.0})],
)  # fmt: skip
def test_where_the_proof_ends_tight_zcdp_is_the_headline(inside, beyond):
    def spent(*, count=1000, delta=1e-5, epsilon=1.0):
        sigma = 1 / conversions.mu_for_epsilon(epsilon, delta)
        return account([replace(START, count=count, sigma=sigma)], delta)

    assert spent(**inside).headline.accountant == GAUSSIAN_DP_DISCRETE
    guarantee = spent(**beyond)
    assert guarantee.headline.accountant == ZCDP_TIGHT
    tight = conversions.epsilon_zcdp_tight(guarantee.rho, guarantee.delta)
    assert guarantee.headline.epsilon == tight
    assert GAUSSIAN_DP_DISCRETE not in {figure.accountant for figure in guarantee.figures}


# --- Replacing a record ---------------------------------------------------------------------------

patients = {"unit": "patient", "neighbours": "add-remove"}


@settings(max_examples=30)
@given(st.lists(st.floats(0.3, 50), min_size=1, max_size=5), deltas)
def test_replacing_a_record_costs_what_noise_of_half_the_size_would(multipliers, delta):
    """A sum moves by at most twice as much, so mu doubles. Our conversions are not used here."""
    guarantee = account([made(multiplier, **patients) for multiplier in multipliers], delta)
    mu = 2 * math.sqrt(sum(multiplier**-2 for multiplier in multipliers))
    epsilon = guarantee.headline.replacing
    assume(guarantee.headline.accountant == GAUSSIAN_DP_DISCRETE)
    assume(1e-3 < epsilon < 400)  # where the proof for discrete noise holds
    # Both include only the slack of discrete noise.
    exact = delta_to_50_digits(mu, epsilon - DISCRETE_SLACK)
    assert float(exact / (delta * (1 - DISCRETE_SLACK))) == pytest.approx(1, rel=1e-8)


def test_every_figure_has_its_own_price_by_its_own_conversion(monkeypatch):
    events = [made(6.0, sensitivity=3.0, **patients)] * 3
    guarantee = account(events, 1e-5)
    found = {each.accountant: each.replacing for each in guarantee.figures}
    for name in (ZCDP_TIGHT, PROPOSITION_2_8, RDP):
        assert found[name] == pytest.approx(figure(account([made(1.0)] * 3, 1e-5), name), rel=CLOSE)
    monkeypatch.setattr(accountants, "_more", {"nothing": lambda *_: 0.0})
    accountants.register("sum", lambda events, delta: sum(e.rho for e in events))
    assert account(events, 1e-5) == guarantee  # decisions do not depend on them
    opinions = account(events, 1e-5, second_opinions=True).figures[4:]
    found = [(second.accountant, second.epsilon, second.replacing) for second in opinions]
    assert found == [("nothing", 0.0, 0.0), ("sum", 3 / 8, 3 / 2)]


@pytest.mark.parametrize(
    ("name", "opinion", "says"),
    [(GAUSSIAN_DP_DISCRETE, 0.001, "its name is taken"), ("mine", float("nan"), "it says nan"),
     ("mine", -1.0, "it says -1.0"), ("mine", float("inf"), "says inf"), ("mine", None, "float")],
)  # fmt: skip
def test_an_accountant_that_fails_or_takes_a_name_is_left_out(
    caplog, monkeypatch, name, opinion, says
):
    monkeypatch.setitem(accountants._more, name, lambda *_: opinion)
    events = [made(2.0, **patients)]
    assert account(events, 1e-5, second_opinions=True) == account(events, 1e-5)
    assert f"accountant {name!r} is left out: " in caplog.text
    assert says in caplog.text


def test_the_price_stands_wherever_the_epsilon_does_and_only_where_it_is_one():
    guarantee = account([made(2.0, **patients)], 1e-5)
    price = privacy.rounded_up(guarantee.headline.replacing)
    for one in guarantee.figures:
        assert "; replacing a patient's record: " in str(one)
    assert f": {price})" in str(guarantee.headline)
    assert guarantee.to_dict()["replacing"] == guarantee.headline.replacing
    entries = account([made(2.0)], 1e-5)  # its neighbours already replace a record
    assert "replacing" not in str(entries.headline)
    assert entries.to_dict()["replacing"] is None


# --- Bad input ------------------------------------------------------------------------------------

CONVERSIONS = (
    conversions.epsilon_proposition_2_8, conversions.epsilon_zcdp_tight, conversions.epsilon_rdp,
    conversions.epsilon_gaussian, conversions.mu_for_epsilon, conversions.rho_for_epsilon,
)  # fmt: skip


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True])
def test_numbers_that_are_not_positive_are_named(bad):
    for call, name in [
        (partial(conversions.mu_for_epsilon, bad, 1e-5), "epsilon"),
        (partial(conversions.rho_for_epsilon, bad, 1e-5), "epsilon"),
        (partial(sigma_of, bad, 1.0), "rho"), (partial(sigma_of, 1.0, bad), "sensitivity"),
    ]:  # fmt: skip
        with pytest.raises(SettingsError, match=f"^{name}: must be a finite number above 0, got"):
            call()


@pytest.mark.parametrize("root", [0.0, 0.3, 1.0])
def test_a_root_is_found_at_either_end_of_its_bracket_too(root):
    found = root_of(lambda x: x - root, 0.0, 1.0)
    assert found == pytest.approx(root, rel=2e-16, abs=1e-300)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_delta_outside_the_open_unit_interval_is_refused(bad):
    for call, spent in [*((convert, 1.0) for convert in CONVERSIONS), (account, [made(1.0)])]:
        with pytest.raises(SettingsError, match=r"^delta: must"):
            call(spent, bad)


@pytest.mark.parametrize("change", [{"unit": "patient"}, {"neighbours": "add-remove"}])
def test_releases_under_different_relations_do_not_add_up(change):
    with pytest.raises(SettingsError, match="different units or neighbouring relations"):
        account([made(1.0), made(1.0, **change)], 1e-5)


def test_an_epsilon_is_rounded_up_but_not_for_a_rounding_error():
    assert privacy.rounded_up(math.nextafter(4.0, 5)) == "4.000"
    assert privacy.rounded_up(4.0001) == "4.001"
    assert privacy.rounded_up(1.23451e-9) == "0.000000001235"


def test_a_delta_above_a_tenth_of_a_patient_is_warned_of():
    say = ("delta {} is large for a site of {} patients: publishing the whole record of one of "
           "them with a chance of {} would be within the guarantee; choose delta = {}")  # fmt: skip
    assert delta_warning(1e-5, 11_000) == say.format("1e-05", "11,000", "11%", "1e-06")
    assert delta_warning(0.5, 10) == say.format("0.5", "10", "100%", "0.01")
    assert delta_warning(0.1, 1) == delta_warning(0.01, 1) == ""
