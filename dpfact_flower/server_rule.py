"""What a server computes from the sites' replies: one rule a privacy mode, behind one interface.

A rule holds the global factors. It says what to ask in a round and what shape an answer has, and
moves on from the answers; it knows nothing of messages, quorums or disks: that is `Coordinator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.elastic import elastic_average, elastic_step, initial_factors
from dpfact_flower.errors import DataError
from dpfact_flower.privacy import ReleaseEvent, paper_rho, planned_events
from dpfact_flower.protocol import SiteReply, checked_factors
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Factors

Selection = tuple[NDArray[np.int32], ...]


class ServerRule(Protocol):
    """A run as the server computes it.

    Attributes
    ----------
    rounds : int
        Rounds the run has.
    privacy : PrivacySettings
        As the sites are asked: with everything planned that was left open.
    factors : tuple of ndarray of float32
        The global factors now.
    selection : tuple of ndarray of int32
        Codes that are kept, one array a feature mode; empty where all are.
    """

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
        """Refuse a number of sites that the rule is not stable for."""

    def needs_quorum(self, round_number: int) -> bool:
        """Whether the run cannot go on without this round."""

    def update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Move on from the replies, which are sorted by site and of one shape."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays from which `restore` makes the rule again."""

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave."""


class ElasticRule:
    """Elastic averaging of the sites' factors, every round alike: eq. (global)."""

    selection: Selection = ()

    def __init__(
        self,
        feature_shape: Sequence[int],
        solver: SolverSettings,
        privacy: PrivacySettings,
        run: RunSettings,
    ) -> None:
        self.rounds = run.rounds
        self.privacy = privacy
        self.factors: Factors = initial_factors(feature_shape, solver.rank, run.seed)
        self._solver = solver
        self._step = run.elastic_step

    def anchors(self, round_number: int) -> Factors:
        """Global factors, in every round."""
        return self.factors

    def reply_shapes(self, round_number: int) -> list[tuple[int, ...]]:
        """Those of the global factors."""
        return [factor.shape for factor in self.factors]

    def planned_events(self, round_number: int) -> tuple[ReleaseEvent, ...]:
        """In paper mode one release a factor; without noise none."""
        if self.privacy.privacy == "none":
            return ()
        sizes = {f"mode {mode}": f.size for mode, f in enumerate(self.factors, start=1)}
        return planned_events(
            self._solver,
            paper_rho(self.privacy, self.rounds, len(sizes)),
            sizes,
            round_number=round_number,
            seeded=self.privacy.noise_seed >= 0,
        )

    def check_sites(self, sites: int) -> None:
        """Refuse more sites than the elastic step is stable for."""
        elastic_step(self._solver, self._step, max(sites, 1))

    def needs_quorum(self, round_number: int) -> bool:
        """No: a round that is missed leaves the model as it was."""
        return False

    def update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Pull the global factors toward the sites'."""
        # Sites that joined after the first round may be more than the step is stable for.
        step = min(elastic_step(self._solver, self._step, 1), 1 / len(replies))
        self.factors = elastic_average(self.factors, [reply.arrays for reply in replies], step)

    def state(self) -> dict[str, NDArray[Any]]:
        """The global factors."""
        return factor_arrays(self.factors)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the factors of a checkpoint."""
        self.factors = restored_factors(arrays, self.factors)


def factor_arrays(factors: Factors) -> dict[str, NDArray[Any]]:
    """Factors under the names that `restored_factors` reads."""
    return {f"factor_{mode}": factor for mode, factor in enumerate(factors, start=1)}


def restored_factors(arrays: Mapping[str, NDArray[Any]], like: Factors) -> Factors:
    """Factors of a checkpoint, of the shapes of `like`.

    Raises
    ------
    DataError, MessageError
        If one is missing or of another shape.
    """
    found = [arrays[name] for name in factor_arrays(like) if name in arrays]
    if [factor.shape for factor in found] != [factor.shape for factor in like]:
        raise DataError("factors of other shapes than the run's")
    return checked_factors(found, rank=like[0].shape[1], who="checkpoint")
