"""Compute a site's messages in a secure sum, and the state that the site must store.

Before a site sends a message, the `JobSecrets` and `RoundState` on which the message depends must
be on the site's disk. The functions in this module enforce three rules:

1. The site draws only one noisy vector per round.

2. If the server repeats a `Question`, the site repeats its reply. If the members change, the server
   must make a new attempt. Within a round, the request and the site's key must not change.

3. In each round, the site helps to unmask only the latest attempt that the site answered. After
   helping to unmask an attempt, the site answers no further attempts in the round.

Without these rules, a server could learn two sums that differ only by one site's vector. Only the
site's own noise would then protect the vector. To rule out a second sum, each site also adds a mask
of its own, whose seed is split among the other sites (Bonawitz et al. 2017). If `dropouts` is 0, a
round has only one attempt, and no site adds a mask of its own.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError, PrivacyRefusedError
from dpfact_flower.privacy.secure_sum import keys, masks
from dpfact_flower.privacy.secure_sum.keys import Member, Question, Terms, context_of

RandomBytes = Callable[[int], bytes]
_NONCE = bytes(12)  # each key seals only one share
_KEPT = {"ser_json_bytes": "hex", "val_json_bytes": "hex", "arbitrary_types_allowed": True}


@dataclass(frozen=True)
class JobSecrets:
    """A site's fresh X25519 key for a job. The key is deleted when the run ends."""

    __pydantic_config__ = _KEPT
    terms: Terms
    key: bytes = field(repr=False)
    member: Member


@dataclass(frozen=True)
class Opening:
    """A site's message for unmasking a sum: the site's seed and shares of other sites' seeds."""

    seed: bytes = field(repr=False)
    shares: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if any(len(secret) != masks.SEED_BYTES for secret in (self.seed, *self.shares.values())):
            raise MessageError(f"opening: need a seed and shares of {masks.SEED_BYTES} bytes each")


@dataclass(frozen=True, eq=False)
class RoundState:
    """A site's state in a round: the last question answered, and the values used in the answer.

    `seed` generates the site's own mask, and is empty if `dropouts` is 0. `sealed` holds one share
    of the seed for each other member, encrypted for that member. If `opening` is set, the site
    answers no further attempts. `noisy` is the site's vector plus the site's part of the noise.
    `noisy` may leave the site only in masked form, and the state's JSON omits it.
    """

    __pydantic_config__ = _KEPT
    question: Question
    seed: bytes = field(repr=False)
    sealed: Mapping[str, bytes] = field(repr=False)
    opening: Opening | None
    noisy: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), repr=False)


def join(
    terms: Terms,
    site: str,
    signing_key: Ed25519PrivateKey,
    peers: Mapping[str, bytes],
    random_bytes: RandomBytes = os.urandom,
) -> JobSecrets:
    """Create a site's secrets for a job. Only the public part, `member`, may leave the site."""
    if site not in terms.sites:
        raise PrivacyRefusedError("terms: this site is not among the job's sites")
    for other in terms.sites:
        if other != site:
            keys.pinned(peers, other)
    key = X25519PrivateKey.from_private_bytes(random_bytes(32))
    member = keys.signed_member(terms, site, key.public_key().public_bytes_raw(), signing_key)
    return JobSecrets(terms, key.private_bytes_raw(), member)


@dataclass(frozen=True)
class Masked:
    """A site's answer: its masked vector, and encrypted shares of the seed of its own mask."""

    context: bytes
    words: bytes = field(repr=False)
    sealed: Mapping[str, bytes] = field(repr=False)


class AllowedQuestion(NamedTuple):
    """A question that the site may answer, as `check_question` has found.

    `state` is the state after the round's last answer, or None if a new round begins.
    """

    job: JobSecrets
    question: Question
    state: RoundState | None


def check_question(
    job: JobSecrets, state: RoundState | None, question: Question, peers: Mapping[str, bytes]
) -> AllowedQuestion:
    """Refuse a question that the site may not answer. Do not read patients' data."""
    keys.check_members(job.terms, question.members, peers, job.member)
    _agreed(job, question)  # refuses keys of low order
    if not job.terms.dropouts and question.attempt != 1:
        raise PrivacyRefusedError("secure sum: secure-dropouts = 0 allows only one attempt")
    if state is None or question.round > state.question.round:
        return AllowedQuestion(job, question, None)
    last = state.question
    if question == last:
        return AllowedQuestion(job, question, state)
    if question.round < last.round:
        raise PrivacyRefusedError(f"secure sum: round {question.round} is over")
    if (question.request, question.width) != (last.request, last.width):
        raise PrivacyRefusedError("secure sum: this round was answered to another request")
    if job.member not in last.members:  # another key would allow two openings
        raise PrivacyRefusedError("secure sum: this round was answered with another key")
    if state.opening is not None:
        raise PrivacyRefusedError("secure sum: this round was opened; it has no further attempt")
    if question.attempt <= last.attempt:
        raise PrivacyRefusedError(
            f"secure sum: attempt {last.attempt} was answered; a changed question needs a later one"
        )
    return AllowedQuestion(job, question, state)


def answer(
    allowed: AllowedQuestion,
    draw: Callable[[], NDArray[np.int64]],
    random_bytes: RandomBytes = os.urandom,
) -> RoundState:
    """Return the round's new state, which must be on disk before the masked vector is sent.

    `draw` returns the noisy vector and is called only once per round. Only simulations may pass a
    seeded `random_bytes`.
    """
    job, question, state = allowed
    if state and state.question == question:
        return state
    noisy = state.noisy if state else draw()
    if not job.terms.dropouts:
        return RoundState(question, b"", {}, None, noisy)
    seed = masks.new_seed(random_bytes)
    shares = masks.shares_of(seed, job.terms.threshold, len(question.members))
    share_of = dict(zip(question.sites, shares, strict=True))
    context, site = context_of(job.terms, question), job.member.site
    sealed = {
        other: _sealing(secret, context, site, other).encrypt(_NONCE, share_of[other], context)
        for other, secret in _agreed(job, question).items()
    }
    return RoundState(question, seed, sealed, None, noisy)


def masked(job: JobSecrets, state: RoundState) -> Masked:
    """Return the answer to the question in `state`. Repeated calls return the same bytes."""
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
    """Return the key for a site's own mask."""
    return masks.derived(seed, context, "own", site)


def opened(
    job: JobSecrets, state: RoundState | None, context: bytes, sealed: Mapping[str, bytes]
) -> RoundState:
    """Return the round's new state, which must be on disk before the state's `opening` is sent.

    `sealed` holds the shares that other sites encrypted for this site, keyed by site name. Damaged
    shares are ignored. A repeated request gets the same opening.
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
                share = cipher.decrypt(_NONCE, sealed[other], context)
                if len(share) == masks.SEED_BYTES:
                    shares[other] = share
    return replace(state, opening=Opening(state.seed, shares))


def _agreed(job: JobSecrets, question: Question) -> dict[str, bytes]:
    """Return the secrets that this site shares with the other members, keyed by member name."""
    key = X25519PrivateKey.from_private_bytes(job.key)
    others = [member for member in question.members if member != job.member]
    return {member.site: masks.agreed(key, member.key) for member in others}


def _sealing(secret: bytes, context: bytes, sender: str, receiver: str) -> ChaCha20Poly1305:
    """Return the cipher (RFC 8439) for one share that `sender` sends to `receiver`."""
    return ChaCha20Poly1305(masks.derived(secret, context, "share", sender, receiver))
