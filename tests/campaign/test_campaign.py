"""A short form of the campaign: one scenario for each kind of fault, and one for the server."""

from dataclasses import replace

import pytest

from tests.campaign.network import FAULTS
from tests.campaign.real import SIGNALS, TARGETS, drawn_real
from tests.campaign.scenario import Scenario, carry_out, drawn


@pytest.mark.parametrize("kind", FAULTS)
def test_a_run_with_one_kind_of_fault_ends_well(cohort, tmp_path, kind):
    scenario = Scenario(7, "patient", 0.4, (kind,), None)
    outcome = carry_out(scenario, cohort, tmp_path)
    assert outcome.problems == []
    assert any(kind in what for what in outcome.happened)


@pytest.mark.parametrize("step", [1, 9, 25])
def test_a_run_whose_server_dies_reaches_the_same_bits(cohort, tmp_path, step):
    """Nothing else goes wrong, and there is no noise."""
    whole = Scenario(2, "none", 0.0, (), None)
    ends = []
    for name, scenario in (("whole", whole), ("parts", replace(whole, server=step))):
        ends.append(carry_out(scenario, cohort, tmp_path / name))
    assert [outcome.problems for outcome in ends] == [[], []]
    assert [outcome.starts for outcome in ends] == [1, 2]
    found = [(tmp_path / name / "run" / "checkpoint.npz").exists() for name in ("whole", "parts")]
    assert found == [True, True]
    assert ends[0].factors == ends[1].factors


def test_a_scenario_is_its_seeds():
    assert drawn(5) == drawn(5)
    assert len({drawn(seed).kinds for seed in range(60)}) > 8
    assert {drawn(seed).mode for seed in range(20)} == {"patient", "none"}


def test_a_row_of_seeds_has_every_blow_to_every_kind_of_process():
    assert drawn_real(5) == drawn_real(5)
    many = len(TARGETS) * len(SIGNALS)
    first = [drawn_real(seed).blows[0] for seed in range(many)]
    assert {(blow.target, blow.way) for blow in first} == {(t, w) for t in TARGETS for w in SIGNALS}
    assert {drawn_real(seed).mode for seed in range(many)} == {"patient", "none"}
