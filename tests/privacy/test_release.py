import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import NO_CLAIM, PAPER_CLAIM, PATIENT_CLAIM, SEEDED_CLAIM, ReleaseEvent
from dpfact_flower.privacy.release import ALONE_CLAIM, about_rows, about_rows_of, claim_of


def event(**changes):
    values = {
        "name": "round 3, diagnoses", "sensitivity": 0.4, "sigma": 2.0, "count": 150,
        "unit": "entry", "neighbours": "replace", "claim": PAPER_CLAIM, "seeded": False,
    }  # fmt: skip
    return ReleaseEvent(**{**values, **changes})


def test_costs_follow_from_sensitivity_and_sigma():
    assert event().noise_multiplier == pytest.approx(5.0)
    assert event().rho == pytest.approx(0.4**2 / (2 * 2.0**2))


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 10**9), st.booleans())
def test_json_round_trip(sensitivity, sigma, count, seeded):
    before = event(sensitivity=sensitivity, sigma=sigma, count=count, seeded=seeded)
    assert ReleaseEvent(**json.loads(json.dumps(asdict(before)))) == before


def test_numpy_scalars_become_plain_ones():
    made = event(sensitivity=np.float32(0.5), sigma=np.float64(2), count=np.int64(7))
    assert json.loads(json.dumps(asdict(made)))["count"] == 7
    assert made == event(sensitivity=0.5, sigma=2.0, count=7)


BAD = {
    "sensitivity": (0.0, -1.0, math.nan, "1", True), "count": (0, 1.5, True),
    "sigma": (0.0, float("inf"), math.nan), "own_sigma": (2.0, 3.0, -1.0),
    "ratio out of range": ({"sensitivity": 1e-170, "sigma": 1e10}, {"sensitivity": 1e300}),
}  # fmt: skip


@pytest.mark.parametrize(("says", "bad"), [(says, bad) for says in BAD for bad in BAD[says]])
def test_a_bad_value_names_its_field_and_so_does_a_ratio_that_floats_cannot_hold(says, bad):
    with pytest.raises(SettingsError, match=rf"^{says}: must|: {says}$"):
        event(**(bad if isinstance(bad, dict) else {says: bad}))


def test_claims_are_verbatim_and_seeded_noise_comes_first():
    assert PAPER_CLAIM == "claimed by DPFact, Theorem 4.1; entry-level; not proven"
    assert SEEDED_CLAIM == "seeded: not private"
    assert NO_CLAIM == "none: no privacy guarantee"
    assert claim_of([]) == NO_CLAIM
    assert claim_of([event(), event()]) == PAPER_CLAIM
    assert claim_of([event(), event(seeded=True)]) == f"{SEEDED_CLAIM} ({PAPER_CLAIM})"
    assert claim_of([event(), event(claim="another")]) == f"another; and {PAPER_CLAIM}"
    claims = "; and ".join(about_rows(claim, "stay") for claim in (PATIENT_CLAIM, ALONE_CLAIM))
    assert about_rows_of(claims, "one patient's or patients'") == "one stay's or stays'"
