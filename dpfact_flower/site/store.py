"""Read and write the files that a site keeps between a job's rounds, except the ledger.

Each round's file contains the site's factors as they were before noise was added. The site writes a
round's file, then adds the round's row to the ledger, and then deletes the previous round's file.
After a crash, the ledger's last row determines which file is valid. In privacy mode "none", the
site uses the stored factors to answer a repeated request.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, StateError
from dpfact_flower.machine.files import check_own, for_owner, locked, private_folder, replacing
from dpfact_flower.machine.parsed import from_json, load_npz, parse_as
from dpfact_flower.privacy.ledger import LEDGER, noted_head
from dpfact_flower.settings import Scalar
from dpfact_flower.tensor import Factors, SquaredError

ENDING, REPEAT_END = "ending.npz", "delete it, and let the centre repeat the last round"
_CLOSED = "DATA-HAS-CHANGED.txt"
_CLOSED_TEXT = """The site's data may have changed since this run began, so the run stops here.
Start a new run. Delete this file only if the site has its former data again.
"""
_STATE = "state-"
_NOTICE = "NOT-TO-BE-SHARED.txt"
_NOTICE_TEXT = """The files of this folder are made from this site's patients and are not private.
No noise protects them, and no epsilon covers them. This holds for the factors in state-*.npz, the
measures in history.jsonl, and every result made from them. They are for this site's own use.
"""


@dataclass(frozen=True, eq=False)
class SiteState:
    """A site's factors without noise, and the step size `eta`. The patient factor comes first."""

    round: int
    factors: Factors
    eta: float


@dataclass(frozen=True)
class RoundMeasures:
    """A site's measurements of a round, which are kept in `history.jsonl` and never sent."""

    round: int
    error: SquaredError
    seconds: float


class SiteStore:
    """A job's folder, which refuses to read files made from data with another `fingerprint`."""

    def __init__(
        self, site: Path, job: str, fingerprint: str = "", *, durable: bool = True
    ) -> None:
        self.folder = site / job
        for path in (site.parent, site, self.folder):
            check_own(path)
        self._fingerprint, self._durable = fingerprint, durable

    def create(self) -> None:
        """Create the job's folder, and a text file that warns that the folder is not private."""
        notice = self.folder / _NOTICE
        if not notice.exists():
            private_folder(self.folder)
            with open(notice, "w", encoding="utf-8", opener=for_owner) as file:
                file.write(_NOTICE_TEXT)

    def close(self) -> None:
        """Mark the job as closed, so that the site refuses all new rounds of the job."""
        self.forget_secrets()  # even if the disk is full
        with replacing(self.folder / _CLOSED) as file:
            file.write(_CLOSED_TEXT.encode())

    def forget_secrets(self) -> None:
        """Delete a job's key and noisy vector for secure sums, and all their temporary copies."""
        for path in self.folder.glob("*secure-*"):  # temporary files begin with a dot
            path.unlink(missing_ok=True)

    @property
    def is_closed(self) -> bool:
        """Whether the job has been closed."""
        return (self.folder / _CLOSED).exists()

    def save(self, state: SiteState) -> None:
        """Write a round's factors, and keep the factors of earlier rounds."""
        head = {"round": state.round, "eta": state.eta}
        self._write(self._path(state.round), head, state.factors)

    def load(self, round_number: int | None = None) -> SiteState | None:
        """Load a round's factors (default: the latest round). Return None if no file exists.

        Omit `round_number` only to inspect files. In a run, the ledger names the valid round.
        """
        files = self.folder.glob(f"{_STATE}*.npz")
        path = max(files, default=None) if round_number is None else self._path(round_number)
        if path is None or not path.exists():
            return None
        way_out = "restore the folder from a copy, or start a new job"
        (number, eta), factors = self._read(path, ("round", "eta"), way_out)
        return SiteState(number, tuple(factors), eta)

    def keep_only(self, round_number: int) -> None:
        """Delete the factors of all rounds except `round_number`."""
        for path in self.folder.glob(f"*{_STATE}*"):  # temporary files begin with a dot
            if path != self._path(round_number):
                path.unlink(missing_ok=True)

    def keep_ending(self, arrays: Sequence[NDArray[Any]], config: Mapping[str, Scalar]) -> None:
        """Store the request of a run's last round if no such request is stored."""
        path = self.folder / ENDING
        if not path.exists():
            self._write(path, {"config": dict(config)}, arrays)

    def ending(self) -> tuple[list[NDArray[Any]], dict[str, Scalar]] | None:
        """Return the stored arrays and config of the last round's request, or None."""
        path = self.folder / ENDING
        if not path.exists():
            return None
        (config,), arrays = self._read(path, ("config",), REPEAT_END)
        return arrays, config

    def _path(self, round_number: int) -> Path:
        return self.folder / f"{_STATE}{round_number:06d}.npz"

    def _write(self, path: Path, head: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        self.create()
        text = json.dumps({"fingerprint": self._fingerprint, "arrays": len(arrays), **head})
        with replacing(path, durable=self._durable) as file:
            np.savez(file, *arrays, head=np.array(text))

    def _read(
        self, path: Path, keys: tuple[str, ...], way_out: str
    ) -> tuple[list[Any], list[NDArray[Any]]]:
        """Read a file that `_write` wrote. Errors about a damaged file end with `way_out`."""
        try:
            members = load_npz(path, ["head"])
            head = from_json(str(members.pop("head")))
            arrays = [members[f"arr_{number}"] for number in range(head["arrays"])]
            fingerprint, *values = (head[key] for key in ("fingerprint", *keys))
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}: damaged ({type(error).__name__}); {way_out}") from None
        if fingerprint != self._fingerprint:
            raise StateError(
                f"{path}: made from different data or with another .ledger-key; start a new job"
            )
        return values, arrays

    def note(self, measures: RoundMeasures) -> None:
        """Append the measures to the site's own `history.jsonl`."""
        with open(self.folder / "history.jsonl", "a", opener=for_owner) as file:
            file.write(json.dumps(asdict(measures)) + "\n")

    def history(self) -> list[RoundMeasures]:
        """Read `history.jsonl`. If a round has several lines, use only its last line."""
        path = self.folder / "history.jsonl"
        rounds: dict[int, RoundMeasures] = {}
        lines = path.read_bytes().splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                measures = parse_as(RoundMeasures, from_json(line))
            except ValueError:
                raise StateError(f"{path}: line {number} is damaged") from None
            rounds[measures.round] = measures
        return [rounds[number] for number in sorted(rounds)]


def close_jobs(folder: Path) -> int:
    """Close all jobs in a site's folder, and delete the keys of secure jobs. Count closed jobs."""
    if not folder.exists():  # its owner must be the user who answers requests
        return 0
    with locked(folder):
        for path in folder.glob(".*secure-job*"):  # no job's name begins with a dot
            path.unlink()
        jobs = [path.name for path in folder.iterdir() if path.is_dir()]
        for job in jobs:
            SiteStore(folder, job).close()
    return len(jobs)


def has_jobs(folder: Path) -> bool:
    """Return whether a job has started in `folder`, which must then contain a ledger."""
    if not folder.exists():
        return False
    return noted_head(folder / LEDGER) is not None or any(p.is_dir() for p in folder.iterdir())
