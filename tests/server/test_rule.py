"""The server's computations, without messages and disks: one interface, two rules."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.server.elastic import ElasticRule, elastic_average
from dpfact_flower.server.patient import PatientRule
from dpfact_flower.server.rule import ServerRule, initial_factors, numbered, unnumbered
from dpfact_flower.server.secure import slot_totals
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.wire.protocol import SiteReply
from tests.bits import assert_bits

SHAPE = (5, 4)
SOLVER = SolverSettings(rank=3)
PSGD = SolverSettings(rank=3, solver="psgd", clip=1.0, eta=1e-3)
NONE, PAPER = PrivacySettings(privacy="none"), PrivacySettings(privacy="paper", epsilon=1.2)
PATIENT = PrivacySettings(start_share=0.7, refine_rounds=1, bound=0.1)
RULES = {
    "none": (ElasticRule, SOLVER, NONE),
    "paper": (ElasticRule, PSGD, PAPER),
    "patient": (PatientRule, SOLVER, PATIENT),
}


def make(name, noise_seed=-1, **run):
    (kind, solver, privacy), given = RULES[name], {"rounds": 6, "seed": 2, "start": "random", **run}
    return kind(SHAPE, solver, replace(privacy, noise_seed=noise_seed), RunSettings(**given))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_starts_from_the_public_seed(name):
    rule = make(name)
    assert_bits(rule.factors, initial_factors(SHAPE, 3, 2))
    assert initial_factors((2,), 1, 0)[0].ravel() == pytest.approx([0.949985, 0.312295], abs=1e-6)
    assert rule.selection == rule.false_discovery == ()
    assert not np.array_equal(make(name, seed=3).factors[0], rule.factors[0])


@pytest.mark.parametrize("name", RULES)
def test_every_round_has_shapes_and_as_many_values_as_are_planned(name):
    rule = make(name)
    for number in range(1, rule.rounds + 1):
        counts = [int(np.prod(shape)) for shape in rule.reply_shapes(number)]
        events = [event.count for event in rule.planned_events(number)]
        assert events == ([] if name == "none" else counts)
        assert name != "none" or counts == [15, 12]


def test_a_rule_must_have_every_method_and_has_started_by_default():
    needed = "anchors needs_quorum planned_events reply_shapes restore state update"
    assert (sorted(ServerRule.__abstractmethods__), ServerRule.started) == (needed.split(), True)


@pytest.mark.parametrize("seed", [-1, 0, 3])
def test_noise_from_a_seed_is_called_seeded(seed):
    paper, patient = ("paper", 3, ["mode 1", "mode 2"]), ("patient", 3, ["refine mode 2"])
    for name, number, events in paper, ("patient", 1, ["start"]), patient:
        planned = make(name, seed).planned_events(number)
        assert [event.name for event in planned] == [f"round {number}, {event}" for event in events]
        assert {event.seeded for event in planned} == {seed >= 0}


def test_arrays_keep_their_order_in_a_state():
    factors = initial_factors((3,) * 11, 2, 0)
    assert_bits(unnumbered(dict(sorted(numbered("factor", factors).items())), "factor"), factors)


def test_a_step_that_many_sites_make_unstable_shrinks():
    rule = make("none", elastic_step=0.4)
    before, given = rule.factors, [initial_factors(SHAPE, 3, seed) for seed in range(3, 7)]
    rule.update(1, [SiteReply(site, each) for site, each in zip("abcd", given, strict=True)])
    assert_bits(rule.factors, elastic_average(before, given, 1 / 4))


def test_the_totals_of_slots_are_as_precise_as_a_sites_release():
    planned, half = SimpleNamespace(own_sigma=2.0, count=2), 1 << 15
    one, two = slot_totals(np.array([SIGMA, -3 * SIGMA, half, half - 1]), planned)
    assert (one.site, one.arrays[0].tolist()) == ("slot-1", [2.0, -6.0])
    assert (two.site, two.arrays[0].tolist()) == ("slot-2", [2.0 / (SIGMA >> 16), 0.0])
