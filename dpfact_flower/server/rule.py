"""The interface of server rules, which update the global factors from the sites' replies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count, takewhile

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.patient.plan import PatientPlan
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor import Array, Factors, Selection
from dpfact_flower.wire.protocol import SiteReply


class ServerRule(ABC):
    """Base class of the server's update rules. For sites' rules, see `dpfact_flower.site.rules`.

    `privacy` includes values that the server computes, such as `bound`. `selection` has one array
    of the selected codes' positions for each feature mode. If all codes are used, `selection` is
    empty. `plan` is the plan of a run in patient mode. `started` is False until the rule has
    computed its initial factors, if the sites' replies are needed for that.
    """

    name: str
    rounds: int
    privacy: PrivacySettings
    factors: Factors
    selection: Selection = ()
    plan: PatientPlan | None = None
    started: bool = True

    @property
    def false_discovery(self) -> tuple[float, ...]:
        """Each phenotype's estimated probability of being a false discovery, or () if unknown."""
        return ()

    def usages(self, round_number: int) -> NDArray[np.float64] | None:
        """Return the value of `RoundRequest.usages` for a round, or None to send no usages."""
        return None

    def arrive(
        self, round_number: int, replies: Sequence[SiteReply], shares: Sequence[float]
    ) -> None:
        """In an asynchronous run, update the factors from all sites' latest replies."""
        raise NotImplementedError

    @abstractmethod
    def anchors(self, round_number: int) -> Factors:
        """Return the global factors for a round's request."""

    @abstractmethod
    def reply_shapes(self, round_number: int) -> list[tuple[int, ...]]:
        """Return the expected shapes of the arrays in a site's reply."""

    @abstractmethod
    def planned_events(self, round_number: int) -> tuple[ReleaseEvent, ...]:
        """Return the events for which a site is charged if the site answers a round."""

    def check_sites(self, sites: int) -> None:  # noqa: B027 - most rules suit any number
        """Log a warning or raise an error if the number of sites does not suit the run."""

    @abstractmethod
    def needs_quorum(self, round_number: int) -> bool:
        """Return whether the run must stop if too few sites reply in the given round."""

    @abstractmethod
    def update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Update the factors from the replies, which are sorted by site and have equal shapes."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Return the arrays for a checkpoint."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore the rule's state from arrays that `state` returned for the same settings."""


def numbered(name: str, arrays: Sequence[Array]) -> dict[str, Array]:
    """Return a dict of arrays with the keys ``name_1``, ``name_2`` and so on."""
    return {f"{name}_{number}": array for number, array in enumerate(arrays, start=1)}


def unnumbered(arrays: Mapping[str, Array], name: str) -> tuple[Array, ...]:
    """Return the arrays that `numbered` named, in their original order."""
    names = takewhile(arrays.__contains__, (f"{name}_{number}" for number in count(1)))
    return tuple(arrays[name] for name in names)


def initial_factors(feature_shape: Sequence[int], rank: int, seed: int) -> Factors:
    """Return random factors, with entries between 0 and 1 and columns of norm 1."""
    rng = np.random.default_rng([seed, rank, *feature_shape])
    factors = (rng.random((size, rank)) + 1e-3 for size in feature_shape)
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in factors)
