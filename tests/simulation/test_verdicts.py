"""The page's verdicts on the paper's claims, from made-up results with known answers."""

import math

import numpy as np
import pytest
from scipy import stats

from simulation.paper import convergence, epsilon, norms, prediction, traffic
from simulation.paper.jobs import Result, Results
from simulation.paper.plan import QUICK
from simulation.paper.verdicts import answer, difference, tally

PLAN = QUICK.on("demo-icu")


def test_answers_follow_from_cases_and_cases_from_intervals():
    cases = {
        "": "not measured", "supports": "yes", "supports open": "partly",
        "supports contradicts": "partly", "open contradicts": "no", "contradicts": "no",
        "open open": "undecided",
    }  # fmt: skip
    assert {each: answer(each.split()) for each in cases} == cases
    assert tally(["supports", "open", "open"]) == "1 of 3 support, 2 open"
    clear, unclear = difference([1.0, 1.1, 0.9], [0, 0, 0]), difference([1.0, -0.9, 0.5], [0, 0, 0])
    assert (clear.case("above"), clear.case("below")) == ("supports", "contradicts")
    assert (unclear.case("above"), unclear.case("below")) == ("open", "open")
    assert difference([5.0], [0.0]).case("above") == "open"  # one start is not enough
    worth = difference([0.10, 0.11, 0.09], [0, 0, 0])
    assert worth.case_within(0.05, 0.2) == "supports"
    assert clear.case_within(0.05, 0.2) == "contradicts"
    assert difference([0.0, 0.001, 0.0], [0, 0, 0]).case_within(0.05, 0.2) == "contradicts"
    assert unclear.case_within(0.05, 0.2) == "open"


def test_the_interval_is_students_and_over_splits_nadeau_and_bengios():
    rng = np.random.default_rng(1)
    one, other = rng.random(10), rng.random(10)
    found = difference(one, other)
    plain = stats.ttest_rel(one, other)
    assert found.mean == pytest.approx(np.mean(one - other))
    assert found.spread == pytest.approx(np.std(one - other, ddof=1))
    assert found.p == pytest.approx(plain.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(plain.confidence_interval(0.95)))
    found = prediction.paired(one, other)
    t = plain.statistic * math.sqrt((1 / 10) / (1 / 10 + 0.4 / 0.6))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), 9))
    assert found.p > plain.pvalue
    wide = plain.confidence_interval(0.95)
    assert (found.high - found.low) / (wide.high - wide.low) == pytest.approx(
        math.sqrt((1 / 10 + 0.4 / 0.6) * 10)
    )
    same = prediction.paired(one, one)
    assert (same.mean, same.p, same.case("above")) == (0.0, 1.0, "open")


def verdicts(section, result, plan=PLAN):
    """What a section of the page says where this is the result of each of its jobs."""
    results = Results({job: result(job) for job in section.jobs(plan)})
    return section.section(plan, results).verdicts


def accuracy(rmse):
    """Judge the claim about RMSE, with given final RMSEs and small differences between starts."""

    def result(job):
        end = rmse.get(job.system, 1.0) + 0.001 * job.seed
        trace = [{"round": 1, "all_cells": end, "nonzeros": 1.0, "fit": 0.1}]
        return Result({"trace": trace, "shared": {"rmse": end}, "fms_planted": None}, 1.0)

    return verdicts(convergence, result)[0]


def test_the_verdict_on_rmse_follows_the_numbers():
    assert accuracy({"paper": 0.5}).answer == "yes"
    worse = accuracy({"paper": 1.5})
    assert worse.answer == "no"
    assert "DPFact, the paper's noise: 0 of 2 support, 2 contradict (+50.0 to +50.0 %" in worse.why
    assert accuracy({"paper": 1.0}).answer == "undecided"
    assert accuracy({"paper": 1.0, "trip": 1.5}).answer == "partly"


def utility(level):
    """Judge the claims about AUC, with given AUCs and equal differences between splits."""
    splits = np.linspace(-0.05, 0.05, PLAN.splits)

    def result(job):
        wobble = np.resize([0.001, -0.001], PLAN.splits) * (sum(map(ord, job.system)) % 3)
        scores = (level.get(job.system, 0.7) + splits + wobble).tolist()
        return Result({"auc": {"overall": scores, "site-6": scores}}, 1.0)

    return [verdict.answer for verdict in verdicts(prediction, result)]


@pytest.mark.slow
def test_the_verdicts_on_auc_follow_the_numbers():
    ours = ("paper", "psgd", "exact")
    assert utility(dict.fromkeys(ours, 0.8)) == ["yes", "yes", "yes"]
    assert utility(dict.fromkeys(ours, 0.6)) == ["no", "no", "no"]
    assert utility({}) == ["undecided", "undecided", "no"]
    assert utility({"trip": 0.6}) == ["partly", "yes", "no"]


def test_the_verdicts_on_traffic_follow_the_numbers():
    def answers(trip, extra=0):
        def result(job):
            size = {"trip": trip}.get(job.system, 100) * job.sites + extra
            return Result({"rounds": [{"down": 0, "up": size}]}, 0.0)

        return [verdict.answer for verdict in verdicts(traffic, result, QUICK)]

    assert answers(150) == ["yes", "yes"]
    assert answers(110) == ["no", "yes"]
    assert answers(150, extra=50) == ["yes", "no"]


def recovery(closeness, fit):
    """Judge the claim about FMS, with given factors at each epsilon."""
    rng = np.random.default_rng(0)
    base, noise = ([rng.random((9, 12)).astype(np.float32) ** 4 for _ in range(2)] for _ in "ab")

    def result(job):
        near = 1.0 if job.epsilon in (0.0, epsilon.NO_NOISE) else closeness(job.epsilon)
        shared = tuple(near * b + (1 - near) * n for b, n in zip(base, noise, strict=True))
        return Result({"shared": {"fit": fit}, "fms_planted": 0.5}, 0.0, shared)

    return verdicts(epsilon, result)[0]


def test_the_verdict_on_epsilon_follows_the_numbers():
    rises = recovery(lambda at: 0.2 if at < 2 else 0.99, fit=0.3)
    assert rises.answer == "yes"
    assert "without having learned" not in rises.why
    assert "without having learned" in recovery(lambda at: 0.2 if at < 2 else 0.99, fit=0.0).why
    assert recovery(lambda at: 0.2, fit=0.3).answer == "no"
    assert recovery(lambda at: 1.0, fit=0.3).answer == "no"  # the FMS does not rise


def test_the_verdict_on_norms_follows_the_numbers():
    def said(off_at_one_site):
        def result(job):
            own = np.ones((6, 12))
            own[5, 3] = 0.0 if off_at_one_site(job.relative_l21) else 1.0
            values = {"norms": own.tolist(), "sites": [f"site-{n}" for n in range(1, 7)],
                      "trace": [{"fit": 0.3}], "fms_planted": 0.5}  # fmt: skip
            return Result(values, 0.0, tuple(np.ones((n, 12), np.float32) for n in (120, 200)))

        return verdicts(norms, result)[0].answer

    assert said(lambda off: off > 0) == "yes"
    assert said(lambda off: True) == "partly"
    assert said(lambda off: off == 0) == "no"
