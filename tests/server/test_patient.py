"""Patient mode on the server: schedule, checkpoints, quorum, and whole runs in one process."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.client_app import DPFactClient
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.errors import QuorumError, SettingsError, StateError
from dpfact_flower.estimation.refine import refine_factor
from dpfact_flower.evaluation.run_folder import SUMMARY, read_json, read_model, read_summary
from dpfact_flower.privacy import PATIENT_CLAIM
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.runtime.serve import federate_cohort, federate_config
from dpfact_flower.server import patient as module
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import Failure
from dpfact_flower.server.patient import PatientRule
from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.tensor.cp import factor_match_score
from dpfact_flower.wire.protocol import SiteReply
from tests.bits import assert_bits

SHAPE = (9, 12)
SOLVER = SolverSettings(rank=4, relative_elastic=0.6)
PLANNED = PrivacySettings(start_share=0.7, refine_rounds=2, bound=0.1)
CODES = replace(PLANNED, codes="6x8")
OPEN = PrivacySettings(codes="6x8", patients=500)
"""Share and rounds are left for the server to plan."""


def make_rule(privacy=CODES, **run) -> PatientRule:
    return PatientRule(SHAPE, SOLVER, privacy, RunSettings(**{"seed": 2, "sites": 3, **run}))


def make(folder=None, *, resume=False, privacy=CODES, rank=4, **run) -> Coordinator:
    given = RunSettings(**{"seed": 2, "sites": 3, "job": "job", **run})
    own = {"solver": replace(SOLVER, rank=rank), "privacy": privacy, "run": given}
    return Coordinator(SHAPE, **own, run_dir=folder, resume=resume)


def make_replies(rule, number, sites="abc", times=10) -> list[SiteReply]:
    """Make the sites' replies, with arbitrary statistics that are the same for the same request."""

    def reply(site):
        rng, shapes = np.random.default_rng([number, *site.encode()]), rule.reply_shapes(number)
        return SiteReply(site, tuple((times * rng.random(s)).astype(np.float32) for s in shapes))

    return [reply(site) for site in sites]


def close(server: Coordinator, number: int, sites="abc", failures=()):
    return server.close_round(number, make_replies(server.rule, number, sites), failures)


def go_to(server: Coordinator, last: int) -> Coordinator:
    for number in range(server.finished_rounds + 1, last + 1):
        close(server, number)
    return server


def test_what_was_left_open_is_planned_and_sent():
    server = make(privacy=OPEN)
    asked = server.request(1).privacy
    assert 0 < asked.start_share <= 1
    assert asked.refine_rounds >= 0
    assert replace(asked, start_share=0.0, refine_rounds=-1, bound=0.0) == OPEN
    assert server.request(1).rounds == server.rounds
    # A site that knows neither the number of sites nor the seed computes the same plan.
    assert make_rule(asked, sites=0, seed=9).plan.releases == server.rule.plan.releases


def test_a_cohort_that_is_too_small_is_said_before_the_start(caplog):
    caplog.set_level(logging.INFO)
    make_rule(replace(CODES, patients=10_000)).check_sites(3)
    server = make(privacy=replace(CODES, patients=50, epsilon=0.1))
    levels = [r.levelno for r in caplog.records if r.getMessage().startswith("plan: ")]
    assert levels == [logging.INFO, logging.WARNING]
    server.rule.check_sites(6)
    assert "plan: 50 patients at 6 sites" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(("delta", "warned"), [(0.006, False), (0.007, True)])
def test_a_delta_too_large_for_the_cohort_is_said_before_the_start(caplog, delta, warned):
    server = make(privacy=replace(CODES, patients=50, delta=delta))
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    warnings = [text for text in said if text.startswith("plan: delta 0.007 is large for")]
    assert [text.endswith("choose delta = 0.001") for text in warnings] == [True] * warned
    server.rule.check_sites(0)  # of a number that is not known
    assert "for a site of 50 patients" in caplog.text


# --- determinism and quorum


@pytest.mark.parametrize(("privacy", "number"), [(CODES, 1), (CODES, 2), (PLANNED, 1)],
                         ids=["codes", "start after codes", "start"])  # fmt: skip
@pytest.mark.parametrize("sites", ["", "a"])
def test_a_run_does_not_go_on_without_its_codes_or_its_start(privacy, number, sites):
    server = go_to(make(privacy=privacy, min_sites=2), number - 1)
    before = server.rule.state()
    says = rf"round {number}: {len(sites)} usable replies, the quorum is 2, .*: x: gone\. Nothing"
    with pytest.raises(QuorumError, match=says):
        close(server, number, sites, [Failure("x", "gone")])
    assert server.finished_rounds == number - 1
    np.testing.assert_equal(server.rule.state(), before)


@pytest.mark.slow
def test_what_phenotypes_are_judged_by_does_not_move_them_and_survives_a_checkpoint(monkeypatch):
    server = go_to(make(privacy=PLANNED), 3)
    chances = server.rule.false_discovery
    assert len(chances) == SOLVER.rank
    again = make(privacy=PLANNED)
    again.rule.restore(server.rule.state())
    assert again.rule.false_discovery == chances
    monkeypatch.setattr(module, "fitted_to_halves", lambda *_: ())
    without = go_to(make(privacy=PLANNED), 3)
    assert without.rule.false_discovery == ()
    assert_bits(without.factors, server.factors)


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 5, 7])
def test_a_refinement_that_is_missed_leaves_the_model_as_it_was(number):
    server = go_to(make(min_sites=2), number - 1)
    before = server.factors
    assert not close(server, number, "a").updated
    assert_bits(server.factors, before)
    go_to(server, server.rounds)


@pytest.mark.parametrize("patients", [2_000, 20_000], ids=["rounds", "memory"])
def test_a_resumed_run_keeps_its_plan_when_other_sites_are_expected(tmp_path, patients):
    many = {"privacy": replace(OPEN, patients=patients), "sites": 60, "min_sites": 50}
    first, fewer = make(tmp_path, **many), {**many, "sites": 0, "min_sites": 2}
    first.begin()
    with pytest.raises(QuorumError, match=r"build on this one\. .* or with a lower min-sites"):
        close(first, 1)
    new, plan = make(**fewer).rule.plan, first.rule.plan
    assert (new.settings, new.memory) != (plan.settings, plan.memory)
    again = make(tmp_path, resume=True, **fewer)
    assert again.privacy == first.privacy
    go_to(again, 2)
    assert make(tmp_path, resume=True, **fewer).rule.plan == plan
    with pytest.raises(StateError, match="start-share"):
        make(tmp_path, resume=True, **{**fewer, "privacy": replace(OPEN, start_share=0.5)})


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [PLANNED, CODES, OPEN], ids=["whole", "codes", "open"])
@pytest.mark.parametrize("split", [1, 2, 4])
def test_a_run_goes_on_bit_for_bit(tmp_path, privacy, split):
    rounds = make(privacy=privacy).rounds
    whole = go_to(make(tmp_path / "whole", privacy=privacy), rounds)
    first = go_to(make(tmp_path / "parts", privacy=privacy), split)
    second = make(tmp_path / "parts", privacy=privacy, resume=True)
    assert second.finished_rounds == split
    assert_bits(second.rule.selection, first.rule.selection)
    if split < rounds:
        assert second.request(split + 1).digest == first.request(split + 1).digest
    go_to(second, rounds)
    assert_bits(second.factors, whole.factors)
    assert_bits(second.rule.selection, whole.rule.selection)
    assert second.records == whole.records


@pytest.mark.slow
def test_a_refinement_is_averaged_with_the_one_before():
    rule, forgetful = make_rule(), make_rule()
    for number in range(1, 6):
        rule.update(number, make_replies(rule, number))
    forgetful.restore({n: a for n, a in rule.state().items() if not n.startswith("average")})
    third = make_replies(rule, 6)
    rule.update(6, third)
    forgetful.update(6, third)
    assert not np.array_equal(rule.factors[1], forgetful.factors[1])


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_averages_survive_a_checkpoint(share):
    rule, again = make_rule(PLANNED), make_rule(PLANNED)
    rule.plan = again.plan = replace(rule.plan, memory=share)
    rule.update(2, make_replies(rule, 2))
    averages = [name for name in rule.state() if name.startswith("average")]
    assert averages == ["average_0_sites", "average_0_values", "average_0_sigma"] * bool(share)
    again.restore(rule.state())
    np.testing.assert_equal(again.state(), rule.state())
    for number in (3, 4):
        rule.update(number, make_replies(rule, number))
        again.update(number, make_replies(again, number))
    assert_bits(again.factors, rule.factors)


def test_surrogates_of_the_start_are_taken_and_then_refined_with_usages_in_secure_sums(monkeypatch):
    rule = make_rule()
    made = tuple(np.full_like(factor, 0.5) for factor in rule.factors)
    monkeypatch.setattr(module, "fitted_to_surrogates", lambda *_: made)
    for number in (1, 2):
        rule.update(number, start := make_replies(rule, number))
    assert_bits(rule.factors, made)
    assert rule.usages(3) is None  # without secure sums
    rule._totals = tuple(reply.arrays[0] for reply in start)
    asks = [rule.usages(number) is not None for number in range(1, rule.rounds + 1)]
    assert asks == [False, False, True, True, True, True, False]
    assert rule.usages(3).shape == (len(start), 2, SOLVER.rank)
    planned, refinements = rule.plan.release_of(3), make_replies(rule, 3)
    rule.update(3, refinements)
    expected = refine_factor(
        [reply.arrays[0] for reply in refinements], made, 0, sigma=planned.seen_sigma,
        shrink=RunSettings().shrink, tau=SOLVER.tau, pull=0.05 * 0.6,
    )  # fmt: skip
    assert_bits(rule.factors, expected)


# --- a rank determined by the start


@pytest.fixture
def two_exist(monkeypatch):
    """Two phenotypes seem to exist, however many are fitted."""
    monkeypatch.setattr(module, "distinct_number", lambda *_: 2)


@pytest.mark.usefixtures("two_exist")
@pytest.mark.parametrize("known", [True, False], ids=["known", "too noisy"])
def test_the_rank_is_decided_where_the_start_can_be_judged(monkeypatch, caplog, known):
    monkeypatch.setattr(module, "fitted_to_surrogates", lambda start, *_: start.factors)
    monkeypatch.setattr(module, "fitted_to_halves", lambda *_: ["two halves"] if known else [])
    server = go_to(make(privacy=PLANNED, auto_rank=True), 1)
    assert server.factors[0].shape[1] == (2 if known else SOLVER.rank)
    assert ("too noisy to judge" in caplog.text) is not known


@pytest.mark.parametrize(
    ("rank", "found", "kept"),
    [(4, [3, 2], 4), (4, [2, 1], 4), (4, [0], 4), (4, [3, 3], 3), (4, [1, 1, 1], 1), (4, [1, 2], 2),
     (5, [4], 5), (7, [1, 4], 4)],
)  # fmt: skip
def test_a_lower_rank_is_kept_only_if_more_of_its_phenotypes_exist(
    monkeypatch, caplog, rank, found, kept
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "fitted_to_surrogates", lambda start, *_: start.factors)
    monkeypatch.setattr(module, "fitted_to_halves", lambda *_: ["two halves"])
    counts = iter(found)
    monkeypatch.setattr(module, "distinct_number", lambda *_: next(counts))
    server = go_to(make(privacy=PLANNED, rank=rank, auto_rank=True), 1)
    assert server.factors[0].shape[1] == kept
    assert ("are no better; back to 4" in caplog.text) == (found in ([3, 2], [2, 1], [0]))
    assert ("phenotypes seem to be real; all 3 are kept" in caplog.text) == (found == [3, 3])


@pytest.mark.slow
@pytest.mark.usefixtures("two_exist")
@pytest.mark.parametrize("split", [1, 3])
def test_a_lower_rank_is_filled_up_on_the_wire_and_survives_a_checkpoint(tmp_path, split):
    given = {"privacy": PLANNED, "auto_rank": True}
    whole = go_to(make(tmp_path, **given), split)
    assert {factor.shape[1] for factor in whole.factors} == {2}
    assert len(whole.rule.false_discovery) == 2
    request, fixed = whole.request(split + 1), make(privacy=PLANNED)
    for sent, factor in zip(request.anchors, whole.factors, strict=True):
        assert_bits(sent[:, :2], factor)
        assert sent.shape[1] == SOLVER.rank
        assert not sent[:, 2:].any()
    assert whole.rule.reply_shapes(split + 1) == fixed.rule.reply_shapes(split + 1)
    assert whole.rule.planned_events(split + 1) == fixed.rule.planned_events(split + 1)
    with pytest.raises(StateError, match="auto-rank"):
        make(tmp_path, resume=True, privacy=PLANNED)
    again = make(tmp_path, resume=True, **given)
    assert again.request(split + 1).digest == request.digest
    assert_bits(go_to(again, again.rounds).factors, go_to(whole, whole.rounds).factors)


@pytest.mark.slow
@pytest.mark.usefixtures("two_exist")
def test_what_sites_add_for_a_dropped_phenotype_changes_nothing():
    noisy, clean = (go_to(make(privacy=PLANNED, auto_rank=True), 1) for _ in range(2))
    replies = make_replies(noisy.rule, 2)
    clean.close_round(2, replies, ())
    for reply in replies:
        product = reply.arrays[0][: SHAPE[0] * SOLVER.rank].reshape(SHAPE[0], SOLVER.rank)
        product[:, 2:] += 1000
    noisy.close_round(2, replies, ())
    assert_bits(noisy.factors, clean.factors)


@pytest.mark.parametrize(
    ("shape", "privacy", "says"),
    [((21,), PLANNED, "a single feature mode"),
     (SHAPE, PrivacySettings(privacy="none"), "no meaning with privacy 'none'")],
)  # fmt: skip
def test_a_rank_is_not_decided_where_no_chance_is_known(shape, privacy, says):
    with pytest.raises(SettingsError, match=says):
        Coordinator(shape, solver=SOLVER, privacy=privacy, run=RunSettings(auto_rank=True))


@pytest.mark.slow
def test_as_many_phenotypes_are_learned_as_were_planted(tmp_path):
    cohort = synthetic(preset("demo", patients=1500, phenotypes=3, shares="0.5,0.3,0.2", local=0.0))
    config = {"rank": 9, "epsilon": 50.0, "auto-rank": True, "secure-sums": True, "noise-seed": 1}
    out = federate_cohort(cohort, RunConfig.read({**config, "out": str(tmp_path / "run")}))
    summary = read_summary(out)
    assert summary.rank == read_model(out)[0][0].shape[1] == 3
    assert len(summary.false_discovery) == 3
    assert summary.measured.fms > 0.9


# --- another loss

START_ALONE = PrivacySettings(start_share=1.0, refine_rounds=0, bound=0.1, noise_seed=7)


def with_loss(loss, shape=SHAPE, **run) -> Coordinator:
    given = RunSettings(**{"job": "job", "sites": 3, **run})
    return Coordinator(shape, solver=replace(SOLVER, loss=loss), privacy=START_ALONE, run=given)


@pytest.mark.parametrize("loss", ["poisson", "bernoulli"])
def test_a_sites_release_is_the_same_with_any_loss(cohort, loss):
    squared, other = with_loss("squared"), with_loss(loss)
    asked, again = squared.request(1), other.request(1)
    assert asked.digest == again.digest
    assert squared.rule.planned_events(1) == other.rule.planned_events(1)
    assert squared.privacy == other.privacy
    for site in cohort.sites:
        given = {"site": site.name, "simulation": True}
        works = [PatientRound(site.vocabularies, each, **given) for each in (asked, again)]
        assert_bits(*(work.run(site, None).release.arrays for work in works))


@pytest.mark.parametrize(("shape", "run"), [((21,), {}), (SHAPE, {"auto_rank": True})])
def test_a_rule_needs_patient_mode_and_another_loss_surrogates_and_a_fixed_rank(shape, run):
    with pytest.raises(SettingsError, match=r"loss: 'poisson' needs .* set loss to 'squared'"):
        with_loss("poisson", shape, **run)
    with pytest.raises(SettingsError, match="loss: there is no 'hinge'"):
        with_loss("hinge", shape, **run)
    with_loss("squared", SHAPE, **run)
    with pytest.raises(SettingsError, match="is for privacy 'patient', not 'paper'"):
        make_rule(PrivacySettings(privacy="paper"))


@pytest.mark.nightly
def test_a_run_with_another_loss_spends_the_same_and_learns_other_factors(tmp_path):
    cohort, found = synthetic(preset("demo", patients=300)), {}
    config = {"rank": 3, "epsilon": 50.0, "refine-rounds": 0, "noise-seed": 1}
    for loss in ("squared", "poisson"):
        own = RunConfig.read({**config, "loss": loss, "out": str(tmp_path / loss)})
        found[loss] = federate_cohort(cohort, own)
    squared, poisson = (read_summary(folder) for folder in found.values())
    assert squared.spent == poisson.spent
    assert squared.exchange.bytes_up == poisson.exchange.bytes_up
    assert len(squared.false_discovery) == 3
    assert poisson.false_discovery == ()
    assert poisson.solver == "exact, poisson"
    assert poisson.measured.fit_shared > poisson.measured.fit_frequencies
    one, other = (read_model(folder)[0] for folder in found.values())
    assert factor_match_score(one, other) < 0.99
    for folder in found.values():
        assert (folder / "report.html").exists()


# --- with real sites


@pytest.mark.parametrize("privacy", [CODES, OPEN], ids=["codes", "open"])
def test_a_site_is_charged_what_the_server_planned(cohort, tmp_path, privacy):
    run, lists = RunSettings(job="job", sites=3), cohort.vocabularies
    server = Coordinator(SHAPE, solver=SOLVER, privacy=privacy, run=run, vocabulary=lists)
    own = SiteSettings(allow_privacy="patient", max_epsilon=4.0)
    state = tmp_path / "state"
    clients = [DPFactClient(s, replace(own, state_dir=str(state / s.name))) for s in cohort.sites]
    planned = []
    for number in range(1, server.rounds + 1):
        wire, shapes = server.request(number).to_wire(), server.rule.reply_shapes(number)
        sent = [client.fit(*wire) for client in clients]
        replies = [SiteReply.from_wire(arrays, config, shapes) for arrays, _, config in sent]
        server.close_round(number, replies, [])
        for event in server.rule.planned_events(number):
            name = event.name.replace("mode 1", "procedures").replace("mode 2", "diagnoses")
            planned.append((replace(event, name=name),))
    assert server.rule.planned_events(server.rounds) == ()  # and is not in the ledger
    for site in cohort.sites:
        with Ledger(tmp_path / "state" / site.name / site.name, create=False) as ledger:
            assert ledger.verify() == []
            assert [row.events for row in ledger.rows()] == planned


def test_a_run_that_counts_codes_leaves_no_patient_in_its_folder(cohort, cohort_folder, tmp_path):
    config = {"data": str(cohort_folder), "out": str(tmp_path / "run"), "rank": 4, "seed": 5,
              "epsilon": 4.0, "start-share": 0.7, "refine-rounds": 1, "codes": "6x8"}  # fmt: skip
    folder = federate_config(config)
    summary = read_json(folder / SUMMARY)
    factors, vocabularies = read_model(folder)
    assert [factor.shape for factor in factors] == [(6, 4), (8, 4)]
    assert all(np.isfinite(factor).all() and (factor >= 0).all() for factor in factors)
    for kept, whole, size in zip(vocabularies, cohort.vocabularies, (6, 8), strict=True):
        assert kept.name == whole.name
        assert len(kept) == size
        places = [whole.codes.index(code) for code in kept.codes]
        assert places == sorted(places)  # in the vocabulary's own order
    assert summary["claim"].startswith(f"{PATIENT_CLAIM}; given the data's code lists")
    assert 3.9 < summary["epsilon"] <= 4.0
    assert set(summary["per_site"]) == {"site-1", "site-2", "site-3"}
    kinds = ["codes", "start", "refine procedures", "refine diagnoses"]
    charged = [f"round {number}, {kind}" for number, kind in enumerate(kinds, start=1)]
    for guarantee in summary["per_site"].values():
        assert [event["name"] for event in guarantee["ledger"]] == charged
    assert (summary["rounds"], summary["failures"]) == (5, 0)
    sizes = {site.tensor.n_patients for site in cohort.sites}
    for path in folder.glob("*.npz"):
        with np.load(path) as arrays:
            shapes = [arrays[name].shape for name in arrays.files if name != "meta"]
        assert not any(sizes & set(shape) for shape in shapes)
    assert not list(folder.rglob("ledger.sqlite"))
    assert not list(folder.rglob("state-*.npz"))


def test_patient_is_what_happens_if_nobody_chose(cohort_folder, tmp_path):
    folder = federate_config({"data": str(cohort_folder), "out": str(tmp_path / "run"), "rank": 2})
    summary = read_json(folder / SUMMARY)
    assert summary["privacy"] == "patient"
    given = "; given the data's code lists and its exact number of patients"
    assert summary["claim"].endswith(given)
    assert "\npatients = 0\n" in (folder / "config.toml").read_text()  # counted in each run
    assert summary["epsilon"] <= 4.0
    assert json.dumps(summary)  # even a tiny cohort's summary can be written
