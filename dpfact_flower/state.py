"""What a site keeps on its own disk between the rounds of a job.

Patient factors, un-noised feature factors, every release made and the bytes of the last one, in
one file that is replaced whole: after a crash a site stands before a round or after it, and a round
that is asked for again gets the bytes that were sent, not fresh noise. The folder belongs to the
site; nothing in it is ever sent, and it never lies in a run folder.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.cp import SquaredError
from dpfact_flower.errors import DataError, StateError
from dpfact_flower.files import private_folder, remove_leftovers, replacing
from dpfact_flower.privacy import Release, ReleaseEvent, replay
from dpfact_flower.tensor import Factors, load_npz

_STATE = "state.npz"


@dataclass(frozen=True, eq=False)
class SiteState:
    """A site after a round.

    Attributes
    ----------
    round : int
        The last round computed.
    factors : tuple of ndarray of float32
        Un-noised local factors, patients first; never sent.
    eta : float
        Step size in force.
    events : tuple of ReleaseEvent
        Every release of this job so far: what the budget is counted from.
    """

    round: int
    factors: Factors
    eta: float
    events: tuple[ReleaseEvent, ...]


@dataclass(frozen=True, eq=False)
class Answered:
    """A finished round as it is kept: what was asked, the state after it, what was sent.

    Attributes
    ----------
    request, terms : str
        Digests of the whole request, and of what must stay the same in a job.
    state : SiteState
    release : Release
    """

    request: str
    terms: str
    state: SiteState
    release: Release


@dataclass(frozen=True)
class RoundMeasures:
    """What a site notes about a round for itself (`history.jsonl`); never sent.

    Sums rather than means, so that several sites' can be added where that is legitimate.
    """

    round: int
    objective: tuple[float, ...]
    error: SquaredError
    column_norms: tuple[float, ...]
    eta: float
    rollbacks: int
    seconds: float

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> RoundMeasures:
        """Read what `dataclasses.asdict` and JSON made of it."""
        return cls(
            **{
                **line,
                "objective": tuple(line["objective"]),
                "column_norms": tuple(line["column_norms"]),
                "error": SquaredError(**line["error"]),
            }
        )


class SiteStore:
    """A site's folder for one job: ``state-dir/site/job/``.

    Parameters
    ----------
    root : path
        The site's `state-dir`.
    site, job : str
        Checked names: they become folders.
    fingerprint : str
        Of the site's tensor; state of other data is refused.
    """

    def __init__(self, root: str | Path, site: str, job: str, fingerprint: str) -> None:
        self.folder = Path(root) / site / job
        self._fingerprint = fingerprint

    def load(self) -> Answered | None:
        """The last finished round, or None before the first.

        Raises
        ------
        StateError
            If the file is damaged or belongs to other data.
        """
        path = self.folder / _STATE
        if not path.exists():
            return None
        remove_leftovers(path)
        try:
            arrays = load_npz(path, ("meta",))
            meta = json.loads(str(arrays["meta"]))
            fingerprint, count = meta["fingerprint"], meta["modes"]
            factors = tuple(arrays[f"factor_{mode}"] for mode in range(count))
            sent = tuple(arrays[f"released_{mode}"] for mode in range(1, count))
            events = tuple(ReleaseEvent.from_dict(event) for event in meta["events"])
            last = events[len(events) - meta["released_events"] :]
            state = SiteState(meta["round"], factors, meta["eta"], events)
            answered = Answered(meta["request"], meta["terms"], state, replay(sent, last))
        except (DataError, StateError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}: damaged state ({type(error).__name__})") from None
        if fingerprint != self._fingerprint:
            raise StateError(
                f"{path}: state of other data; if the data has changed, start a new job"
            )
        return answered

    def save(self, answered: Answered) -> None:
        """Keep a finished round; on return it is on the disk."""
        private_folder(self.folder)
        state, release = answered.state, answered.release
        meta = {
            "request": answered.request,
            "terms": answered.terms,
            "fingerprint": self._fingerprint,
            "round": state.round,
            "eta": state.eta,
            "modes": len(state.factors),
            "events": [event.to_dict() for event in state.events],
            "released_events": len(release.events),
        }
        arrays: dict[str, Any] = {"meta": np.array(json.dumps(meta))}
        arrays |= {f"factor_{mode}": factor for mode, factor in enumerate(state.factors)}
        arrays |= {f"released_{mode}": sent for mode, sent in enumerate(release.factors, start=1)}
        with replacing(self.folder / _STATE) as file:
            np.savez(file, **arrays)

    def note(self, measures: RoundMeasures) -> None:
        """Append a line to the site's own `history.jsonl`."""
        path = self.folder / "history.jsonl"
        with open(path, "a", encoding="utf-8", opener=_open_for_owner) as file:
            file.write(json.dumps(asdict(measures)) + "\n")

    def history(self) -> list[RoundMeasures]:
        """Lines of `history.jsonl`, the last one of each round.

        Raises
        ------
        StateError
            Naming the line that is damaged.
        """
        path = self.folder / "history.jsonl"
        if not path.exists():
            return []
        rounds: dict[int, RoundMeasures] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                measures = RoundMeasures.from_dict(json.loads(line))
            except (KeyError, TypeError, ValueError):
                raise StateError(f"{path}: line {number} is damaged") from None
            rounds[measures.round] = measures
        return [rounds[number] for number in sorted(rounds)]


def spent_before(root: Path, site: str, *, other_than: str) -> tuple[ReleaseEvent, ...]:
    """Releases of a site's other jobs: a new name does not make a new budget.

    Raises
    ------
    StateError
        If a job's record cannot be read: what was spent is then not known.
    """
    events: list[ReleaseEvent] = []
    for path in sorted((root / site).glob(f"*/{_STATE}")):
        if path.parent.name == other_than:
            continue
        try:
            with np.load(path, allow_pickle=False) as archive:  # the factors stay unread
                meta = json.loads(str(archive["meta"]))
            events += [ReleaseEvent.from_dict(event) for event in meta["events"]]
        except Exception as error:  # zipfile, zlib, JSON and NumPy each raise their own
            raise StateError(f"{path}: damaged state ({type(error).__name__})") from None
    return tuple(events)


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
