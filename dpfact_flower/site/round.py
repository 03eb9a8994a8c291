"""Functions and types for a site's rounds in all privacy modes."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import MessageError, shown
from dpfact_flower.privacy import Release, ReleaseEvent, Share
from dpfact_flower.privacy.patient.releases import PlannedRelease
from dpfact_flower.site.store import RoundMeasures, SiteState
from dpfact_flower.wire.protocol import RoundRequest


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """A round's result. Only the field `release` may leave the site."""

    release: Release | Share
    state: SiteState | None = None
    measures: RoundMeasures | None = None


@dataclass(frozen=True, eq=False, repr=False)
class JobState:
    """The data that a site has kept from a job's earlier rounds.

    `state` holds the site's factors after the latest round. `release` returns the site's release of
    a round, or None if the ledger has no values of the round.
    """

    state: SiteState | None = None
    release: Callable[[int], Release | None] = lambda _: None


class RoundWork(ABC):
    """A site's work in one round. Each federation rule has a subclass of `RoundWork`."""

    charged_rounds: int
    """Number of charged rounds left in the run, including this round."""
    is_final: bool = False
    """Whether the round is the run's last, in which the site only stores the public request."""
    planned: PlannedRelease | None = None
    """The release of a round in patient mode, which may need a secure sum."""

    @abstractmethod
    def cost(self) -> tuple[ReleaseEvent, ...]:
        """Return the privacy costs of this round and all later rounds. Use only public values."""

    @abstractmethod
    def run(self, data: SiteData, kept: JobState) -> RoundOutcome:
        """Return the round's outcome. Implementations must not keep references to `data`."""


def check_modes(request: RoundRequest, sizes: Sequence[int]) -> None:
    """Refuse a request with codes outside the vocabularies or with factors of the wrong size."""
    for mode, (positions, size) in enumerate(zip(request.selection, sizes, strict=False), start=1):
        if positions[-1] >= size:
            raise MessageError(f"selection: mode {mode} needs positions in [0, {size})")
    sizes_in_use = tuple(len(positions) for positions in request.selection) or tuple(sizes)
    received = tuple(len(anchor) for anchor in request.anchors)
    if received and received != sizes_in_use:
        raise MessageError(
            f"the run's feature modes have sizes {shown(received)}, this site's {sizes_in_use}: "
            "the vocabularies differ"
        )


def stream(request: RoundRequest, site: str) -> list[int]:
    """Derive a seed sequence for a site and a round. Use only public values."""
    name = int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "big")
    return [request.seed, name, request.round]
