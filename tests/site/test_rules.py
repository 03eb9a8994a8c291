"""Users' own rules: a site's conditions for admission and release."""

from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.errors import MessageError, PrivacyRefusedError, RoundFailedError
from dpfact_flower.privacy import Noise, release_unprotected
from dpfact_flower.privacy.patient import release
from dpfact_flower.privacy.patient.statistics import code_counts
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site.answer import Site
from dpfact_flower.site.round import RoundOutcome, RoundWork
from dpfact_flower.site.rules import site_rules
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest
from tests.site.federation import make_client, make_request, rows_of

SIGMA = 5.0


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(site_rules, "_more", dict(site_rules._more))


def make_site(data, tmp_path, **settings) -> Site:
    given = {"max_epsilon": 10.0, "allow_rules": "counts"}
    return make_client(data, tmp_path, **{**given, **settings}).site


def request(rule="counts", **changes) -> RoundRequest:
    return make_request(**{"rounds": 1, "privacy": PrivacySettings(), "rule": rule, **changes})


class Counts(RoundWork):
    """A rule that announces the event `said`, and releases code counts with the noise of `sent`."""

    charged_rounds = 1
    said, sent = SIGMA * (1 + 1e-13), SIGMA  # rounding makes no larger cost

    def __init__(self, vocabularies, request, *, site, simulation):
        self.sizes = [len(vocabulary) for vocabulary in vocabularies]

    def counts(self, tensor, sigma):
        return release(code_counts(tensor, sigma=sigma), Noise.from_os(), name="counts")

    def cost(self):
        nobody = SparseTensor.from_coo(np.empty((0, 3), int), [], (1, *self.sizes))
        return self.counts(nobody, self.said).events if self.said else ()

    def run(self, data, kept):
        if self.sent:
            return RoundOutcome(self.counts(data.tensor, self.sent))
        return RoundOutcome(release_unprotected([np.ones((2, 2), np.float32)]))


def check_releases_nothing(rule, site, tmp_path, caplog, says, **changes):
    site_rules.register("counts", rule)
    with pytest.raises(RoundFailedError):
        site.answer(request(**changes))
    assert f"the rule releases {says}" in caplog.text
    assert not rows_of(tmp_path)


def test_a_rule_of_others_is_admitted_charged_and_asked_again_for_free(data, tmp_path):
    site_rules.register("counts", Counts)
    site = make_site(data, tmp_path)
    first = site.answer(request())
    np.testing.assert_array_equal(first.arrays[0], site.answer(request()).arrays[0])
    (row,) = rows_of(tmp_path)
    assert [event.sigma for event in row.events] == [SIGMA]


def test_a_rule_without_code_here_or_that_the_hospital_does_not_name_is_refused(data, tmp_path):
    with pytest.raises(MessageError, match="rule: there is no 'counts'; there are elastic, pat"):
        make_site(data, tmp_path).answer(request())
    site_rules.register("counts", Counts)
    with pytest.raises(PrivacyRefusedError, match="rules 'counts'; this site's allow-rules is"):
        make_site(data, tmp_path, allow_rules="elastic,patient").answer(request())
    assert not rows_of(tmp_path)


def test_a_solver_without_code_here_is_refused_before_anything_is_made(data, tmp_path):
    solver = SolverSettings(rank=4, solver="other")
    asked = request("elastic", privacy=PrivacySettings(privacy="none"), solver=solver)
    site = make_site(data, tmp_path, allow_privacy="none", max_epsilon=0.0, allow_rules="elastic")
    with pytest.raises(MessageError, match="solver: there is no 'other'"):
        site.answer(asked)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("said", "sent", "mode"),
    [(SIGMA, 0.99 * SIGMA, "patient"), (SIGMA, 0, "patient"), (0, SIGMA, "patient"),
     (0, 0, "patient"), (SIGMA, 0, "none")],
    ids=["less noise than announced", "no noise", "nothing announced", "neither noise nor cost",
         "no noise in mode none"],
)  # fmt: skip
def test_a_rule_that_sends_more_than_announced_releases_nothing(
    data, tmp_path, said, sent, mode, caplog
):
    says = "more than it announced" if sent else "values without noise"
    rule, asked = type("Liar", (Counts,), {"said": said, "sent": sent}), PrivacySettings(mode)
    site = make_site(data, tmp_path, allow_privacy=mode, max_epsilon=10.0 * (mode != "none"))
    check_releases_nothing(rule, site, tmp_path, caplog, says, privacy=asked)


@pytest.mark.parametrize(
    "more",
    [lambda one: (one, one[:3]), lambda one: (np.append(one, one[:3]),), lambda one: (one[:3],)],
    ids=["another array", "a longer array", "a shorter array"],
)
def test_values_beside_those_that_are_charged_are_refused(data, tmp_path, caplog, more):
    class Liar(Counts):
        def run(self, data, kept):
            made = self.counts(data.tensor, SIGMA)
            return RoundOutcome(replace(made, arrays=more(*made.arrays)))

    site = make_site(data, tmp_path)
    check_releases_nothing(Liar, site, tmp_path, caplog, "values without noise")


class SaysMoreLater(Counts):
    def cost(self):
        said = super().cost()
        self.said = self.sent = SIGMA / 2
        return said


class OfAnEntry(Counts):
    def run(self, data, kept):
        made = super().run(data, kept).release
        half = replace(*made.events, sigma=2 * SIGMA)
        return RoundOutcome(replace(made, events=(half, replace(half, unit="entry"))))


def test_a_rule_has_all_methods():
    for has, lacks in ("run", "cost"), ("cost", "run"):
        with pytest.raises(TypeError, match=f"method '?{lacks}"):
            type("Lacks", (RoundWork,), {has: getattr(Counts, has)})()


@pytest.mark.parametrize("Liar", [SaysMoreLater, OfAnEntry])
def test_what_a_rule_announces_first_is_what_it_may_release(data, tmp_path, caplog, Liar):
    site = make_site(data, tmp_path)
    check_releases_nothing(Liar, site, tmp_path, caplog, "more than it announced")


@pytest.mark.parametrize("own", [SIGMA / 2, 0.49 * SIGMA], ids=["in the clear", "less own noise"])
def test_a_rule_that_charges_a_share_and_sends_more_releases_nothing(data, tmp_path, caplog, own):
    """The cost if all other sites collude has a separate limit."""

    class Liar(Counts):
        def cost(self):
            return tuple(replace(each, own_sigma=SIGMA / 2) for each in super().cost())

        def run(self, data, kept):
            made = self.counts(data.tensor, SIGMA)
            events = tuple(replace(each, own_sigma=own) for each in made.events)
            return RoundOutcome(replace(made, events=events))

    says = "a share of a secure sum unmasked" if own == SIGMA / 2 else "more than it announced"
    check_releases_nothing(Liar, make_site(data, tmp_path), tmp_path, caplog, says)


@pytest.mark.parametrize(
    ("rule", "privacy", "allowed"),
    [("elastic", "patient", "patient"), ("patient", "none", "none"), ("patient", "paper", "paper")],
)
def test_a_rule_is_not_asked_in_another_rules_mode(data, tmp_path, rule, privacy, allowed):
    """Otherwise, a site could release noise that it does not allow, or omit required noise."""
    solver = SolverSettings(rank=4, solver="psgd", clip=1.0)
    asked = request(rule, privacy=PrivacySettings(privacy=privacy), solver=solver)
    site = make_site(data, tmp_path, allow_privacy=allowed, allow_rules=rule,
                     max_epsilon=0.0 if allowed == "none" else 5.0)  # fmt: skip
    with pytest.raises(MessageError, match="has no mode"):
        site.answer(asked)
