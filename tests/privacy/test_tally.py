"""A tally says what the accountant says of all events, to the last bit."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import PAPER_CLAIM, PATIENT_CLAIM, ReleaseEvent, account
from dpfact_flower.privacy.tally import Tally

EVENT = ReleaseEvent("start", 1.0, 7.3, 12, "patient", "add-remove", PATIENT_CLAIM)
PAPER = replace(EVENT, unit="entry", neighbours="replace", claim=PAPER_CLAIM)
numbers = st.floats(1e-3, 1e3)
events = st.builds(
    lambda sensitivity, sigma, count, seeded: replace(
        EVENT, sensitivity=sensitivity, sigma=sigma, count=count, seeded=seeded
    ),
    numbers, numbers, st.integers(1, 10**9), st.booleans(),
)  # fmt: skip


@given(st.lists(events, min_size=1, max_size=30), st.sampled_from([1e-5, 1e-9, 0.3]))
def test_a_tally_guarantees_what_the_accountant_does_bit_for_bit(released, delta):
    tally = Tally().plus(released[:7]).plus(released[7:])
    assert tally.guarantee(delta) == account(released, delta)


def test_its_sum_is_exact_where_adding_one_after_the_other_is_not():
    rhos = [replace(EVENT, sigma=sigma) for sigma in (1e-6, *[1e2] * 1000)]
    naive = 0.0
    for event in rhos:
        naive += event.rho
    assert naive != math.fsum(event.rho for event in rhos) == Tally().plus(rhos).guarantee(0.1).rho


def test_a_tally_does_not_grow_with_the_releases():
    tally = Tally().plus(replace(EVENT, sigma=100.0 + number) for number in range(500))
    assert len(tally.sums) == 1


def test_nothing_and_what_does_not_add_up_has_no_guarantee():
    for tally in (Tally(), Tally().plus([EVENT, PAPER])):
        with pytest.raises(SettingsError, match="one unit"):
            tally.guarantee(1e-5)
    assert Tally().plus([EVENT, PAPER]).relations == {
        ("patient", "add-remove"), ("entry", "replace"),
    }  # fmt: skip


def test_values_without_noise_are_counted():
    assert Tally().plus([], unprotected=2).plus([EVENT], unprotected=1).unprotected == 3
