"""What a server learns if it breaks the protocol or controls some of the sites."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpfact_flower.errors import MessageError, PrivacyRefusedError
from dpfact_flower.privacy.secure_sum import keys, masks, server, site
from tests.privacy.secure_sum.group import COUNT, Group, close, looks_uniform


def total_without_own_masks(group, answers):
    """What is left of some answers, as they travelled, for whoever has the sites' seeds."""
    words = masks.summed([answer.words for answer in answers.values()], 4)
    if group.terms.dropouts:
        seeds = {name: group.states[name].seed for name in answers}
        own = [site.own_key(seeds[name], answers[name].context, name) for name in answers]
        masks.mask(words, (), own)
    return masks.packed(words, 4)


# --- Masked words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dropouts", [0, 1])
def test_a_masked_vector_is_uniform_and_so_is_every_sum_but_the_whole(dropouts):
    """If no site may be lost, sites have no own masks, and pairwise masks hide all but the sum."""
    group = Group(4, 1, dropouts, count=3000)
    for vector in group.vectors.values():
        vector[:] = 7  # as far from uniform as possible
    answers = group.ask_all()
    for size in range(1, 4):
        for names in combinations(group.names, size):
            some = {name: answers[name] for name in names}
            assert looks_uniform(total_without_own_masks(group, some))
    assert all(looks_uniform(answer.words) for answer in answers.values())
    assert not looks_uniform(total_without_own_masks(group, answers))
    assert all(len(answer.sealed) == 3 * dropouts for answer in answers.values())


def test_words_of_one_vector_in_two_attempts_have_nothing_in_common():
    group = Group(4, 1, 1, count=3000)
    name = group.names[0]
    one = group.ask(name, group.question(round=1000))
    two = group.ask(name, group.question(round=int("1000"), attempt=2))  # an equal round
    difference = np.frombuffer(one.words, "<u4") - np.frombuffer(two.words, "<u4")
    assert looks_uniform(difference.tobytes())
    assert group.drawn[name] == 1


# --- Two sums in a round --------------------------------------------------------------------------


def test_without_own_masks_a_site_said_to_be_lost_would_be_given_away():
    """This is why sites have own masks: a server with all vectors asks the others again."""
    group = Group(4, 1, 1)
    lost = group.names[3]
    whole = np.frombuffer(total_without_own_masks(group, group.ask_all()), "<u4")
    rest = group.ask_all(group.question(without=[lost], attempt=2))
    part = np.frombuffer(total_without_own_masks(group, rest), "<u4")
    difference = (whole - part).astype(np.uint64) << np.uint64(masks.LOW)
    assert np.abs(masks.signed(difference, 4) - group.vectors[lost]).max() < 8 << masks.LOW


@pytest.mark.parametrize(("sites", "place"), [(4, 3), (5, 0)])
def test_of_a_site_said_to_be_lost_the_server_learns_nothing(sites, place):
    """With the protocol, only one of the two sums can be opened, whichever sites are asked."""
    group = Group(sites, 1, 1)
    lost, first = group.names[place], group.ask_all()
    question = group.question(without=[lost], attempt=2)
    second = group.ask_all(question)
    for name, context in product(question.sites, (first[lost].context, bytes(32), b"\xff" * 32)):
        told = {other: replace(answer, context=context) for other, answer in first.items()}
        with pytest.raises(PrivacyRefusedError, match="only the last attempt"):
            group.open(name, told)
    opening = {lost: group.open(lost, first)}  # no other request reached it since
    assert server.unopened(group.terms, group.question(), opening) == question.sites
    assert close(group.sum(question, second, question.sites), group.exact(question.sites), sites)


def test_no_two_attempts_are_both_opened_whomever_the_server_tells_what():
    """H = 6, T = 1, D = 2: honest sites may know only one attempt. The sixth site opens both."""
    group = Group(6, 1, 2, count=4)
    *honest, helper = group.names
    questions = [group.question(), group.question(attempt=2, without=honest[4:])]
    answers, kept = [], []
    for question in questions:
        answers.append(group.ask_all(question))
        kept.append(dict(group.states))
    helped = [opened_anyway(group, helper, each) for each in answers]
    for told in product((0, 1), repeat=5):
        openings = [{helper: opening} for opening in helped]
        for which, name in zip(told, honest, strict=True):
            group.states[name] = kept[which][name]
            with suppress(PrivacyRefusedError):  # the fifth site is not in the second attempt
                openings[which][name] = group.open(name, answers[which])
        assert any(map(partial(server.unopened, group.terms), questions, openings))


def sealing(group, sender, receiver, context):
    key = X25519PrivateKey.from_private_bytes(group.jobs[sender].key)
    secret = masks.agreed(key, group.jobs[receiver].member.key)
    return ChaCha20Poly1305(masks.derived(secret, context, "share", sender, receiver))


def opened_anyway(group, name, answers):
    """Return the opening of a dishonest site for any attempt."""
    context = next(iter(answers.values())).context
    shares = {
        other: sealing(group, other, name, context).decrypt(bytes(12), sealed, context)
        for other, sealed in server.sealed_for(name, answers).items()
    }
    return site.Opening(group.states[name].seed, shares)


def test_colluding_sites_and_too_few_others_open_nothing():
    group = Group(7, 2, 1)
    answers = group.ask_all()
    openings = {name: opened_anyway(group, name, answers) for name in group.names[:2]}
    openings |= {name: group.open(name, answers) for name in group.names[2:4]}
    closed = server.unopened(group.terms, group.question(), openings)
    assert closed == group.names[4:]
    places = dict(enumerate(group.names, start=1))
    for name in closed:
        shares = {p: openings[n].shares[name] for p, n in places.items() if n in openings}
        assert len(shares) == group.terms.threshold - 1
        assert masks.seed_from(shares) != group.states[name].seed


# --- Refused questions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [({"request": b"other"}, "another request"), ({"without": ["site-05"]}, "attempt 2 was"),
     ({"width": 5}, "another request"), ({"attempt": 1}, "attempt 2 was")],
)  # fmt: skip
def test_other_questions_in_a_round_that_was_answered(changes, refusal):
    group = Group(6, 1, 1)
    name = group.names[0]
    answered = group.question(attempt=2)
    sent = group.ask(name, answered)
    with pytest.raises(PrivacyRefusedError, match=refusal):
        group.ask(name, group.question(**{"attempt": 2} | changes))
    assert group.ask(name, answered) == sent
    group.open(name, group.ask_all(answered))
    with pytest.raises(PrivacyRefusedError, match="this round was opened"):
        group.ask(name, group.question(attempt=3))
    assert group.drawn[name] == 1


@pytest.mark.parametrize("changes", [{"attempt": 2}, {"request": b"other"}, {"width": 5}])
def test_without_dropouts_there_is_one_question_a_round(changes):
    group = Group(3, 1, 0)
    name = group.names[0]
    context = group.ask(name).context
    with pytest.raises(PrivacyRefusedError):
        group.ask(name, group.question(**changes))
    for refusal, wrong in (("too few", {"without": ["site-02"]}), ("only one", {"attempt": 0})):
        with pytest.raises(PrivacyRefusedError, match=refusal):
            group.ask(name, group.question(round=2, **wrong))
    with pytest.raises(PrivacyRefusedError, match="only the last attempt"):
        site.opened(group.jobs[name], group.states[name], context, {})


@pytest.mark.parametrize(("wrong", "refusal"), [
    (lambda m: m[:2], "too few"),
    (lambda m: m[1:], "this site with its own key"),
    (lambda m: (m[0], m[0], *m[1:]), "once each"),
    (lambda m: m[::-1], "sorted"),
    (lambda m: (*m, replace(m[2], site="site-07")), "from the terms"),
    (lambda m: (replace(m[0], key=m[1].key), *m[1:]), "own key"),
    (lambda m: (*m[:3], replace(m[3], key=bytes(31) + b"\x09")), "not signed"),
    (lambda m: (*m[:3], replace(m[3], signature=m[2].signature)), "not signed"),
    (lambda m: (*m[:3], replace(m[2], site="site-03")), "same key"),
])  # fmt: skip
def test_wrong_members_are_refused_before_a_vector_is_drawn(wrong, refusal):
    group = Group(4, 1, 1)
    with pytest.raises(PrivacyRefusedError, match=refusal):
        group.ask(group.names[0], group.question(members=wrong(group.members)))
    assert group.drawn[group.names[0]] == 0


def signed_by(group, name, key, signing_key=None):
    return keys.signed_member(group.terms, name, key, signing_key or group.signing[name])


def test_a_server_cannot_play_a_site_without_its_long_term_key():
    group = Group(4, 1, 1)
    name, played = group.names[0], group.names[3]
    own = Ed25519PrivateKey.generate()
    member = signed_by(group, played, Group(2).members[1].key, own)
    with pytest.raises(PrivacyRefusedError, match="'site-03' is not signed"):
        group.ask(name, group.question(members=(*group.members[:3], member)))
    del group.peers[played]
    with pytest.raises(PrivacyRefusedError, match="no key of 'site-03' is pinned"):
        group.ask(name)


def test_a_colluding_site_cannot_take_anothers_key_for_its_own(monkeypatch):
    """If pairs with the same keys had the same mask, the second site's masks would cancel."""
    group = Group(4, 1, 1, count=3000)
    first, second, *_, last = group.names
    copied = signed_by(group, last, group.jobs[first].member.key)
    question = group.question(members=(*group.members[:2], copied))
    with pytest.raises(PrivacyRefusedError, match="two sites have the same key"):
        group.ask(second, question)
    # Even if it were admitted, a pair's mask depends on the names.
    monkeypatch.setattr(keys, "check_members", lambda *_: None)
    answers = {second: group.ask(second, question)}
    assert looks_uniform(total_without_own_masks(group, answers))
    group.vectors[second][:] = 7
    with monkeypatch.context() as without_names:
        bound = masks.derived
        without_names.setattr(masks, "derived", lambda s, c, what, *_: bound(s, c, what))
        group.states[second] = None
        answers = {second: group.ask(second, question)}
        assert not looks_uniform(total_without_own_masks(group, answers))


def test_a_key_of_low_order_is_refused_before_a_vector_is_drawn():
    group = Group(3, 1, 0)
    weak = signed_by(group, group.names[2], bytes(32))
    with pytest.raises(PrivacyRefusedError, match="low order"):
        group.ask(group.names[0], group.question(members=(*group.members[:2], weak)))
    assert group.drawn[group.names[0]] == 0


@pytest.mark.parametrize("changes", [{"request": b"with less noise"}, {"attempt": 2}, {"width": 4}])
def test_sites_that_were_asked_different_things_add_up_to_noise(changes):
    group = Group(4, 1, 1, count=3000)
    odd, *rest = group.names
    answers = {odd: group.ask(odd, group.question(**changes))} | {n: group.ask(n) for n in rest}
    left = total_without_own_masks(group, answers)
    assert looks_uniform(left) == (changes != {"width": 4})  # not a change


def test_sites_that_were_told_of_different_keys_add_up_to_noise():
    """A colluding site signs two keys: one for the first site, and one for the others."""
    group = Group(4, 1, 0, count=3000)
    other = signed_by(group, group.names[3], Group(2).members[0].key)
    twice = group.question(members=(*group.members[:3], other))
    answers = {group.names[0]: group.ask(group.names[0], twice)}
    answers |= {name: group.ask(name) for name in group.names[1:]}
    assert looks_uniform(total_without_own_masks(group, answers))


# --- Damage ---------------------------------------------------------------------------------------


def test_a_share_with_a_flipped_byte_or_of_another_length_is_a_missing_share():
    group = Group(5, 1, 1)
    answers = group.ask_all()
    victim, cheat, other, *rest = group.names
    context, sent = answers[victim].context, server.sealed_for(victim, answers)
    seal = partial(sealing(group, cheat, victim, context).encrypt, bytes(12))
    damaged = [seal(share, context) for share in (b"x", bytes(33))]
    for byte in (0, 31, 47):
        damaged.append(bytearray(sent[cheat]))
        damaged[-1][byte] ^= 1
    swapped = {cheat: sent[other], other: sent[cheat]}
    for wrong in swapped, *({cheat: bytes(share), other: b""} for share in damaged):
        state = site.opened(group.jobs[victim], group.states[victim], context, sent | wrong)
        assert list(state.opening.shares) == rest
    for size, other_size in ((32, 31), (32, 33), (33, 32)):
        with pytest.raises(MessageError, match="32 bytes each"):
            site.Opening(bytes(size), {"site-01": bytes(other_size)})


def test_a_flipped_byte_of_a_vector_changes_one_value():
    group = Group(4, 1, 1)
    answers = group.ask_all()
    words = bytearray(answers[group.names[2]].words)
    words[9] ^= 1
    broken = answers | {group.names[2]: replace(answers[group.names[2]], words=bytes(words))}
    off = group.sum(group.question(), broken, group.names) - group.exact(group.names)
    assert np.flatnonzero(np.abs(off) > 4 << masks.LOW).tolist() == [2]
    assert len(off) == COUNT
