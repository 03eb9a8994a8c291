"""What a server computes from the sites' replies: one rule per privacy mode, behind one interface.

A rule holds the global factors. It says what to ask in a round and what shape an answer has, and
moves on from the answers; it knows nothing of messages, quorums or disks: those are the
`Coordinator`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from typing import Protocol

import numpy as np

from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.arrays import Array, Selection
from dpfact_flower.wire.protocol import SiteReply


class ServerRule(Protocol):
    """A run as the server computes it.

    Attributes
    ----------
    name : str
        The sites have their half under the same name (`dpfact_flower.site.rules`).
    privacy : PrivacySettings
        As the sites are asked, with everything planned that was left open.
    factors : tuple of ndarray of float32
        The current global factors.
    selection : tuple of ndarray of int32
        Codes that are kept, one array per feature mode; empty where all are.

    A rule that weighs codes has a method ``weights(round_number)`` too: what a round's request
    carries of them (`RoundRequest.weights`).
    """

    name: str
    rounds: int
    privacy: PrivacySettings
    factors: Factors
    selection: Selection

    def anchors(self, round_number: int) -> Factors:
        """Global factors that a round's request carries."""

    def reply_shapes(self, round_number: int) -> list[tuple[int, ...]]:
        """Shapes of the arrays that a site answers with."""

    def planned_events(self, round_number: int) -> tuple[ReleaseEvent, ...]:
        """What answering a round costs a site."""

    def check_sites(self, sites: int) -> None:
        """Refuse a number of sites that the rule is not stable for, before anything is spent."""

    def needs_quorum(self, round_number: int) -> bool:
        """Whether the run cannot continue without this round."""

    def update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Move on from the replies, which are sorted by site and of one shape."""

    def state(self) -> dict[str, Array]:
        """Arrays from which `restore` rebuilds the rule."""

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `state` gave, for a run of the same settings."""


class ArrivalRule(ServerRule, Protocol):
    """A rule that can also move on from one new reply at a time."""

    def arrive(
        self, round_number: int, replies: Sequence[SiteReply], shares: Sequence[float]
    ) -> None:
        """Move on from the latest replies of all sites, one of which is new.

        A reply counts by its share, which is 1 unless it is stale. As many arrivals as there are
        sites go as far as one `update`, and settle where it would.
        """


def numbered(name: str, arrays: Sequence[Array]) -> dict[str, Array]:
    """Arrays of a checkpoint under a common name and a number each, from 1."""
    return {f"{name}_{number}": array for number, array in enumerate(arrays, start=1)}


def unnumbered(arrays: Mapping[str, Array], name: str) -> tuple[Array, ...]:
    """The arrays that `numbered` named so, in their order."""
    names = takewhile(arrays.__contains__, (f"{name}_{number}" for number in count(1)))
    return tuple(arrays[name] for name in names)


def initial_factors(feature_shape: Sequence[int], rank: int, seed: int) -> Factors:
    """Global feature factors before round 1: uniform on (0, 1), columns of unit norm.

    They depend on public numbers only. The sites' patient factors carry the scale.
    """
    rng = np.random.default_rng([seed, rank, *feature_shape])
    factors = (rng.random((size, rank)) + 1e-3 for size in feature_shape)
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in factors)
