"""A site's half of secure sums: pure functions from its kept values to the next ones.

A site keeps its `JobSecrets`, and a `RoundState` with its noisy vector, the seed of its own mask,
and its opening. Both must be on its disk before anything that follows from them leaves. These
functions enforce the rules:

- a vector is drawn once a round;
- the same question gets the same bytes, and another question, member or key is refused;
- there is one opening a round, of its last attempt, and no other attempt is answered after it.

Otherwise a server that got two sums of a round, one of them without a site, would know that site's
vector under a single share of noise. So a site also adds a mask of its own, whose seed it shares
among the others (Bonawitz et al. 2017). Where no site may be lost there is one attempt, without own
mask and opening.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError, PrivacyRefusedError, StateError
from dpfact_flower.privacy.secure_sum import masks, shamir
from dpfact_flower.privacy.secure_sum.keys import (
    Member,
    Question,
    Terms,
    check_members,
    context_of,
    pinned,
    signed_member,
)

Step = Literal["round", "attempt", "repeat"]
RandomBytes = Callable[[int], bytes]
KEY_BYTES = 32
_NONCE = bytes(12)  # each key seals one share


# --- What a site keeps ----------------------------------------------------------------------------


@dataclass(frozen=True)
class JobSecrets:
    """A site's fresh key of a job (X25519). It is deleted with the job."""

    terms: Terms
    key: bytes = field(repr=False)
    member: Member

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> JobSecrets:
        """The value that `to_json` was given; a StateError if it is damaged."""
        try:
            terms = Terms(**kept["terms"] | {"sites": tuple(kept["terms"]["sites"])})
            return cls(terms, bytes.fromhex(kept["key"]), _member(kept["member"]))
        except (KeyError, TypeError, ValueError):
            raise StateError("secure sums: the job's key is damaged") from None


@dataclass(frozen=True)
class Opening:
    """A site's opening of an attempt: its own seed, and its shares of the others' seeds."""

    seed: bytes = field(repr=False)
    shares: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if any(len(secret) != shamir.SIZE for secret in (self.seed, *self.shares.values())):
            raise MessageError(f"opening: need a seed and shares of {shamir.SIZE} bytes each")


@dataclass(frozen=True, eq=False)
class RoundState:
    """A site's state of a round: the last question that it answered, and the values it used.

    Attributes
    ----------
    noisy : ndarray of int64
        The site's vector with its own share of the noise; it must not leave the site.
    seed : bytes
        Of the site's own mask; empty where no site may be lost.
    sealed : mapping of str to bytes
        Each other member's share of the seed, which only that member can read.
    opening : Opening or None
        If there is one, the question is the last of its round.
    """

    question: Question
    noisy: NDArray[np.int64] = field(repr=False)
    seed: bytes = field(default=b"", repr=False)
    sealed: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    opening: Opening | None = None

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], noisy: NDArray[np.int64]) -> RoundState:
        """The value that `to_json` was given, and its vector; a StateError if it is damaged."""
        try:
            asked, opened = kept["question"], kept["opening"]
            members = tuple(map(_member, asked["members"]))
            request = bytes.fromhex(asked["request"])
            question = Question(**asked | {"request": request, "members": members})
            opening = opened and Opening(bytes.fromhex(opened["seed"]), _bytes(opened["shares"]))
            return cls(
                question, noisy, bytes.fromhex(kept["seed"]), _bytes(kept["sealed"]), opening
            )
        except (KeyError, TypeError, ValueError):
            raise StateError("secure sums: the round's state is damaged") from None


def to_json(value: object) -> Any:
    """A kept value as plain values for JSON, without a round's vector."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: to_json(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [to_json(part) for part in value]
    if is_dataclass(value):
        names = [part.name for part in fields(value) if part.name != "noisy"]
        return {name: to_json(getattr(value, name)) for name in names}
    return value


def _bytes(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in texts.items()}


def _member(texts: Mapping[str, str]) -> Member:
    return Member(texts["site"], bytes.fromhex(texts["key"]), bytes.fromhex(texts["signature"]))


# --- 1. Keys --------------------------------------------------------------------------------------


def join(
    terms: Terms,
    site: str,
    signing_key: Ed25519PrivateKey,
    peers: Mapping[str, bytes],
    *,
    kept: JobSecrets | None = None,
    state: RoundState | None = None,
    random_bytes: RandomBytes = os.urandom,
) -> JobSecrets:
    """A fresh key for a job, or the kept one for the same terms; only its `member` leaves.

    `kept` and `state` are the site's values of this job. Other terms get a fresh key if no round
    was answered.
    """
    if kept is not None and kept.terms == terms:
        return kept
    if state is not None:
        raise PrivacyRefusedError("terms: the job was begun with others; start a new job")
    if site not in terms.sites:
        raise PrivacyRefusedError("terms: this site is not among the job's sites")
    for other in terms.sites:
        if other != site:
            pinned(peers, other)
    key = X25519PrivateKey.from_private_bytes(random_bytes(KEY_BYTES))
    member = signed_member(terms, site, key.public_key().public_bytes_raw(), signing_key)
    return JobSecrets(terms, key.private_bytes_raw(), member)


# --- 2. Masked sum --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masked:
    """A site's answer to an attempt: its masked words, and the sealed shares of its seed."""

    context: bytes
    words: bytes = field(repr=False)
    sealed: Mapping[str, bytes] = field(repr=False)


def check_question(
    job: JobSecrets, state: RoundState | None, question: Question, peers: Mapping[str, bytes]
) -> Step:
    """The step that a question asks for, or a PrivacyRefusedError. Reads no patient.

    A new "round" needs a new vector. A further "attempt" uses the vector of the one before. A
    "repeat" uses the kept answer.
    """
    check_members(job.terms, question.members, peers, job.member)
    _agreed(job, question)  # refuses keys of low order
    if not job.terms.dropouts and question.attempt != 1:
        raise PrivacyRefusedError("secure sum: with secure-dropouts = 0 there is one attempt")
    if state is None or question.round > state.question.round:
        return "round"
    if question == state.question:
        return "repeat"
    last = state.question
    if question.round < last.round:
        raise PrivacyRefusedError(f"secure sum: round {question.round} is over")
    if (question.request, question.width) != (last.request, last.width):
        raise PrivacyRefusedError("secure sum: this round was answered to another request")
    if job.member not in last.members:  # nor under other names: then two attempts could be opened
        raise PrivacyRefusedError("secure sum: this round was answered with another key")
    if state.opening is not None:
        raise PrivacyRefusedError("secure sum: this round was opened; it has no further attempt")
    if question.attempt <= last.attempt:
        raise PrivacyRefusedError(
            f"secure sum: attempt {last.attempt} was answered; other members need a later one"
        )
    return "attempt"


def answer(
    job: JobSecrets,
    state: RoundState | None,
    question: Question,
    peers: Mapping[str, bytes],
    draw: Callable[[], NDArray[np.int64]],
    random_bytes: RandomBytes = os.urandom,
) -> RoundState:
    """The state after a question; it must be on disk before its `masked` leaves.

    `draw` makes the site's vector with its share of noise, and is called once a round. Seeded
    `random_bytes` are for simulation only; they make a sum repeatable.
    """
    step = check_question(job, state, question, peers)
    if step == "repeat" and state is not None:
        return state
    noisy = draw() if step == "round" or state is None else state.noisy
    if not job.terms.dropouts:
        return RoundState(question, noisy)
    seed = shamir.new_secret(random_bytes)
    shares = shamir.share(seed, job.terms.threshold, len(question.members))
    share_of = dict(zip(question.sites, shares, strict=True))
    context, site = context_of(job.terms, question), job.member.site
    sealed = {
        other: _sealing(secret, context, site, other).encrypt(_NONCE, share_of[other], context)
        for other, secret in _agreed(job, question).items()
    }
    return RoundState(question, noisy, seed, sealed)


def masked(job: JobSecrets, state: RoundState) -> Masked:
    """The answer to the question of a state: always the same bytes."""
    context, site = context_of(job.terms, state.question), job.member.site
    added = [own_key(state.seed, context, site)] if job.terms.dropouts else []
    subtracted: list[bytes] = []
    for other, secret in _agreed(job, state.question).items():
        first, second = sorted((site, other))
        pair = masks.derived(secret, context, "mask", first, second)
        (added if site == first else subtracted).append(pair)
    words = state.noisy.astype(np.int64).view(np.uint64)
    masks.mask(words, added, subtracted)
    return Masked(context, masks.packed(words, state.question.width), state.sealed)


def own_key(seed: bytes, context: bytes, site: str) -> bytes:
    """Key of a site's own mask, from its seed."""
    return masks.derived(seed, context, "own", site)


# --- 3. Opening -----------------------------------------------------------------------------------


def opened(
    job: JobSecrets, state: RoundState | None, context: bytes, sealed: Mapping[str, bytes]
) -> RoundState:
    """The state after opening its attempt; it must be on disk before its `opening` leaves.

    `sealed` has the shares that others sealed for this site, by their names. A damaged share is
    left out. A repeated request gets the same opening.
    """
    if state is None or not job.terms.dropouts or context != context_of(job.terms, state.question):
        raise PrivacyRefusedError("opening: only the last attempt of this round can be opened")
    if state.opening is not None:
        return state
    shares = {}
    for other, secret in _agreed(job, state.question).items():
        if other in sealed:
            cipher = _sealing(secret, context, other, job.member.site)
            with suppress(InvalidTag):
                shares[other] = cipher.decrypt(_NONCE, sealed[other], context)
    usable = {other: share for other, share in shares.items() if len(share) == shamir.SIZE}
    return replace(state, opening=Opening(state.seed, usable))


def _agreed(job: JobSecrets, question: Question) -> dict[str, bytes]:
    """The secret that this site shares with each other member, by name."""
    key = X25519PrivateKey.from_private_bytes(job.key)
    others = [member for member in question.members if member != job.member]
    return {member.site: masks.agreed(key, member.key) for member in others}


def _sealing(secret: bytes, context: bytes, sender: str, receiver: str) -> ChaCha20Poly1305:
    """The cipher of one share between two sites (RFC 8439)."""
    return ChaCha20Poly1305(masks.derived(secret, context, "share", sender, receiver))
