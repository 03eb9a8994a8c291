"""The sum is correct whichever sites are lost, and a site continues from its stored state."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dpfact_flower.errors import PrivacyRefusedError
from dpfact_flower.machine.parsed import from_json, parse_as, to_json
from dpfact_flower.privacy.secure_sum import keys, masks, server, site
from tests.privacy.secure_sum.group import COUNT, Group, close


@pytest.mark.parametrize(
    ("sites", "colluding", "dropouts"), [(2, 0, 0), (3, 1, 0), (6, 1, 1), (20, 2, 2)]
)
def test_masks_cancel(sites, colluding, dropouts):
    group = Group(sites, colluding, dropouts)
    question, answers = group.question(), group.ask_all()
    openers = group.names if dropouts else []
    assert close(group.sum(question, answers, openers), group.exact(group.names), sites)
    assert all(len(answer.words) == 4 * COUNT for answer in answers.values())


@pytest.mark.slow
@pytest.mark.parametrize(("sites", "colluding", "dropouts"), [(4, 0, 1), (5, 0, 2), (6, 1, 1)])
def test_every_set_of_losses(sites, colluding, dropouts):
    """Sites are lost before their vectors or before their openings, at most `dropouts` in all."""
    every = Group(sites, colluding, dropouts).names
    for early in range(dropouts + 1):
        for absent in combinations(every, early):
            for silent in combinations(sorted({*every} - {*absent}), dropouts - early):
                group = Group(sites, colluding, dropouts, count=8)
                asked = [name for name in every if name not in absent]
                first = {name: group.ask(name) for name in asked}
                question = group.question()
                if absent:
                    question = group.question(without=absent, attempt=2)
                answers = group.ask_all(question) if absent else first
                openers = [name for name in asked if name not in silent]
                assert close(group.sum(question, answers, openers), group.exact(asked), sites)
                assert [group.drawn[name] for name in asked] == [1] * len(asked)


def test_too_few_openings_are_told_and_enough_give_the_sum():
    group = Group(6, 1, 2)
    question, answers = group.question(), group.ask_all()
    openings = {name: group.open(name, answers) for name in group.names[:3]}
    assert server.unopened(group.terms, question, openings) == group.names[3:]
    for name in group.names[3:5]:
        openings[name] = group.open(name, answers)
        assert server.unopened(group.terms, question, openings) == []
    found = server.unmasked(group.terms, question, answers, openings)
    assert close(found, group.exact(group.names), 6)


def test_what_is_lost_in_the_low_bits_is_uniform_and_has_mean_0():
    group = Group(6, 1, 0, count=20_000)
    question, answers = group.question(), group.ask_all()
    lost = group.sum(question, answers, []) - group.exact(group.names)
    scale = 2.0**masks.LOW * np.sqrt(6 / 12)
    assert abs(lost.mean()) < 6 * scale / np.sqrt(len(lost))
    assert abs(lost.std() / scale - 1) < 0.05


# --- A site's stored state ------------------------------------------------------------------------


def restarted(group, name):
    """Restart the site's process from its disk."""
    job, state = group.jobs[name], group.states[name]
    group.jobs[name] = parse_as(site.JobSecrets, from_json(to_json(job)))
    assert group.jobs[name] == job
    if state is not None:
        read = parse_as(site.RoundState, from_json(to_json(state, ["noisy"])))
        group.states[name] = replace(read, noisy=state.noisy.copy())


@pytest.mark.parametrize("dropouts", [0, 1])
def test_a_site_that_was_killed_says_the_same_again(dropouts):
    group = Group(4, 1, dropouts)
    name = group.names[0]
    restarted(group, name)
    answers = group.ask_all()
    restarted(group, name)
    del group.peers[name]  # a site knows its own key
    assert group.ask(name) == answers[name]
    openers = group.names if dropouts else []
    if dropouts:
        opening = group.open(name, answers)
        restarted(group, name)
        assert group.open(name, answers) == opening
        assert group.ask(name) == answers[name]
    assert close(group.sum(group.question(), answers, openers), group.exact(group.names), 4)
    assert group.drawn[name] == 1


@pytest.mark.parametrize("key", ["question", "seed", "sealed", "opening"])
@pytest.mark.parametrize("damage", ["gone", "wrong"])
def test_damaged_state_is_said_to_be(key, damage):
    group = Group(4, 1, 1)
    group.ask(group.names[0])
    kept = from_json(to_json(group.states[group.names[0]], ["noisy"]))
    del kept[key]
    if damage == "wrong":
        kept[key] = {"seed": "xyz"}
    with pytest.raises(ValueError, match=key):
        parse_as(site.RoundState, kept)
    job = from_json(to_json(group.jobs[group.names[0]]))
    with pytest.raises(ValueError, match="member"):
        parse_as(site.JobSecrets, {**job, "member": None})


def test_nothing_secret_is_in_a_text():
    group = Group(4, 1, 1)
    answers = group.ask_all()
    name = group.names[0]
    group.open(name, answers)
    job, state = group.jobs[name], group.states[name]
    secret = [job.key, state.seed, answers[name].words, *state.opening.shares.values()]
    secret += state.sealed.values()
    for text in map(repr, (job, state, state.opening, answers[name])):
        assert not any(repr(each)[2:-1] in text for each in secret)
        assert "array" not in text


def test_rounds_go_on_and_never_back():
    group = Group(4, 1, 1)
    first = group.ask_all()
    for name in group.names:
        group.open(name, first)
    second = group.ask_all(group.question(round=2))
    name = group.names[0]
    assert group.drawn[name] == 2
    assert group.ask(name, group.question(round=2)) == second[name]
    with pytest.raises(PrivacyRefusedError, match="round 1 is over"):
        group.ask(name)
    with pytest.raises(PrivacyRefusedError, match="only the last attempt"):
        group.open(name, first)
    found = group.sum(group.question(round=2), second, group.names)
    assert close(found, group.exact(group.names), 4)


def test_a_key_is_made_for_the_sites_of_a_job_that_are_pinned():
    group = Group(4, 1, 1)
    name = group.names[1]
    job, signing = group.jobs[name], group.signing[name]
    peers = {other: key for other, key in group.peers.items() if other != name}
    fewer = Group(3, 1, 0).terms
    other = site.join(fewer, name, signing, peers)
    assert other.terms == fewer
    assert other.key != job.key
    with pytest.raises(PrivacyRefusedError, match="not among"):
        site.join(fewer, "elsewhere", signing, peers)
    for missing in (group.names[0], group.names[2]):
        some = {other: key for other, key in peers.items() if other != missing}
        with pytest.raises(PrivacyRefusedError, match=f"no key of '{missing}' is pinned"):
            site.join(fewer, name, signing, some)


def test_two_jobs_beside_each_other_and_one_of_many_sites():
    many = Group(257, count=1)
    keys.check_members(many.terms, many.members, many.peers, many.members[0])
    one = Group(3, 1, 0)
    two = Group(3, 1, 0, job="other", signing=one.signing)
    for group, answers in [(group, group.ask_all()) for group in (one, two)]:
        assert close(group.sum(group.question(), answers, []), group.exact(group.names), 3)
    with pytest.raises(PrivacyRefusedError, match="not signed"):
        one.ask(one.names[0], one.question(round=2, members=(one.members[0], *two.members[1:])))
