"""What a site keeps on its own disk between the rounds of a job, beside the ledger.

Patient factors and the site's own feature factors, all un-noised, one file a round. The ledger says
which round was answered, so which file counts: a round's file is written before the ledger's row
and the file before it is deleted after. After a crash a site stands before a round or after it. The
folder belongs to the site and never lies in a run folder. Nothing in it is ever sent, but for what
was sent before: without noise a release is the site's own feature factors, and if it is asked for
again, they are read from here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.machine.files import (
    Version,
    add_line,
    for_owner,
    private_folder,
    replacing,
    version,
)
from dpfact_flower.machine.npy import load_npz
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.ledger import LEDGER, verified_head
from dpfact_flower.settings import Scalar
from dpfact_flower.site.factor_file import read_factors, write_factors
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.error import SquaredError

ENDING = "ending.npz"
_SELECTION = "selection.sha256"
_CLOSED = "DATA-HAS-CHANGED.txt"
_CLOSED_TEXT = """This run was begun with other data than the site has by now, and stops here.
Start a new run. Only if the data is again what it was, this file may be deleted.
"""
_STATE = "state-"
_SPARE = f".{_STATE}spare"
_NOTICE = "NOT-TO-BE-SHARED.txt"
_NOTICE_TEXT = """The files of this folder are made from this site's patients and are not private.
No noise protects them and no epsilon covers them: neither the factors in state-*.npy nor the
measures in history.jsonl, nor anything that is made from them. They are for this site's own use.
"""


@dataclass(frozen=True, eq=False)
class SiteState:
    """A site's own factors after a round.

    Attributes
    ----------
    round : int
        The round that made them.
    factors : tuple of ndarray of float32
        Un-noised local factors, patients first; never sent.
    eta : float
        Step size in force.
    """

    round: int
    factors: Factors
    eta: float


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
        """Read what `dataclasses.asdict` and JSON made of it.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is something else.
        """
        made = cls(
            **{
                **line,
                "objective": tuple(line["objective"]),
                "column_norms": tuple(line["column_norms"]),
                "error": SquaredError(**line["error"]),
            }
        )
        errors = vars(made.error) | {"nonzeros": made.error.nonzeros or 0.0}  # may be None
        numbers = (*made.objective, *made.column_norms, *errors.values(), made.eta, made.seconds)
        if any(type(whole) is not int for whole in (made.round, made.rollbacks)) or any(
            type(number) not in (int, float) for number in numbers
        ):
            raise ValueError("measures")
        return made


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
    simulation : bool
        Whether this process plays the site. Then `save` does not wait for the disk, it writes over
        what `keep_only` would have deleted, and the factors saved last stay in memory too: a real
        site's process ends with the message.

    Raises
    ------
    StateError
        If one of the folders is not this user's alone, see `check_own`.
    """

    def __init__(
        self,
        root: str | Path,
        site: str,
        job: str,
        fingerprint: str,
        *,
        simulation: bool = False,
    ) -> None:
        self.folder = Path(root) / site / job
        for path in (self.folder.parents[1], self.folder.parent, self.folder):
            check_own(path)
        self._fingerprint = fingerprint
        self._simulation = simulation
        self._begun = False

    def of(self, fingerprint: str) -> SiteStore:
        """The same folder, for a tensor that has been read by now."""
        found = copy(self)
        found._fingerprint = fingerprint
        return found

    def load(self, round_number: int | None = None) -> SiteState | None:
        """Factors that a round left behind; None where it left none.

        Parameters
        ----------
        round_number : int, optional
            By the ledger. Default: the latest there is a file of, which is for looking on.

        Raises
        ------
        StateError
            If the file is damaged or belongs to other data.
        """
        if round_number is None:
            paths = sorted(self.folder.glob(f"{_STATE}*.npy"))
            if not paths:
                return None
            path = paths[-1]
        else:
            path = self._path(round_number)
        try:
            found = version(path)
        except FileNotFoundError:
            return None
        self._begun = self._simulation
        if self._simulation and (kept := _recent.get(found, self._fingerprint)):
            return kept
        try:
            factors, meta = read_factors(path)
            fingerprint = meta["fingerprint"]
            state = SiteState(meta["round"], factors, meta["eta"])
            if type(state.round) is not int or type(state.eta) not in (int, float):
                raise DataError("meta")
        except (DataError, KeyError, TypeError) as error:
            raise StateError(
                f"{path}: damaged state ({type(error).__name__}); restore the folder from a copy, "
                "or start a new job"
            ) from None
        if fingerprint != self._fingerprint:
            raise StateError(
                f"{path}: state of other data; if the data has changed, start a new job"
            )
        return state

    def begin(self) -> None:
        """Make the job's folder, with a note for whoever finds it."""
        notice = self.folder / _NOTICE
        if not (self._begun or notice.exists()):
            private_folder(self.folder)
            with open(notice, "w", encoding="utf-8", opener=for_owner) as file:
                file.write(_NOTICE_TEXT)
        self._begun = True

    def save(self, state: SiteState) -> None:
        """Keep a round's factors beside those before; on return they are on the disk."""
        self.begin()
        meta = {"fingerprint": self._fingerprint, "round": state.round, "eta": state.eta}
        path = self._path(state.round)
        spare = self.folder / _SPARE if self._simulation else None
        with replacing(path, durable=not self._simulation, over=spare) as file:
            write_factors(file, state.factors, meta)
        if self._simulation:
            _recent.keep(version(path), self._fingerprint, state)

    def keep_only(self, round_number: int) -> None:
        """Delete the factors of all rounds but one, once the ledger has that round."""
        kept = self._path(round_number).name
        for name in os.listdir(self.folder):  # once: what `replacing` left begins with a dot
            if name == kept or not name.startswith((_STATE, f".{_STATE}")):
                continue
            path = self.folder / name
            if self._simulation:
                path.replace(self.folder / _SPARE)
            else:
                path.unlink(missing_ok=True)

    def keep_ending(self, arrays: Sequence[NDArray[Any]], config: Mapping[str, Scalar]) -> None:
        """Keep the last request of a run, which is public: the first that came counts."""
        path = self.folder / ENDING
        if path.exists():
            return
        self.begin()
        told = {"fingerprint": self._fingerprint, "config": dict(config)}
        with replacing(path, durable=not self._simulation) as file:
            np.savez(file, json.dumps(told), *arrays)

    def ending(self) -> tuple[list[NDArray[Any]], dict[str, Scalar]] | None:
        """The last request of the run as it travelled; None where it did not come.

        Raises
        ------
        StateError
            If the file is damaged or belongs to other data.
        """
        path = self.folder / ENDING
        if not path.exists():
            return None
        try:
            found = load_npz(path, ["arr_0"])
            told = from_json(str(found.pop("arr_0")))
            fingerprint, config = told["fingerprint"], dict(told["config"])
            arrays = [found[f"arr_{number}"] for number in range(1, 1 + len(found))]
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{path}: damaged ({type(error).__name__}); remove it, and have the last round "
                "asked for again"
            ) from None
        if fingerprint != self._fingerprint:
            raise StateError(f"{path}: of a run on other data")
        return arrays, config

    def same_selection(self, digest: str) -> bool:
        """Whether a job's selection of codes is the one that is noted, if any is."""
        path = self.folder / _SELECTION
        try:
            with path.open("rb") as file:
                return file.read(1 + len(digest)) == digest.encode()
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StateError(f"{path}: cannot be read ({error.strerror})") from None

    def note_selection(self, digest: str) -> None:
        """Note a job's selection of codes, where none is noted: the first counts."""
        path = self.folder / _SELECTION
        if not path.exists():
            self.begin()
            with replacing(path, durable=not self._simulation) as file:
                file.write(digest.encode())

    def close(self) -> None:
        """Note that the job does not go on, its data having changed; without the note if need be.

        Finding that out takes as long as the data is large. So it is found out once.
        """
        with suppress(OSError), replacing(self.folder / _CLOSED) as file:
            file.write(_CLOSED_TEXT.encode())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return (self.folder / _CLOSED).exists()

    def _path(self, round_number: int) -> Path:
        return self.folder / f"{_STATE}{round_number:06d}.npy"

    def note(self, measures: RoundMeasures) -> None:
        """Append a line to the site's own `history.jsonl`."""
        path = self.folder / "history.jsonl"
        # Not by `asdict`, which copies every number: a site notes something every round.
        line = json.dumps(vars(measures) | {"error": vars(measures.error)})
        add_line(path, line, durable=False)

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
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise StateError(f"{path}: cannot be read ({error.strerror})") from None
        for number, line in enumerate(lines, start=1):
            try:
                measures = RoundMeasures.from_dict(from_json(line))
            except (KeyError, TypeError, ValueError):
                raise StateError(f"{path}: line {number} is damaged") from None
            rounds[measures.round] = measures
        return [rounds[number] for number in sorted(rounds)]


class _Recent:
    """Factors as they were saved last, of as many sites as one process plays."""

    _MOST = 16

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Path, tuple[object, SiteState]] = {}  # a folder's, the oldest first

    def keep(self, file: Version, fingerprint: str, state: SiteState) -> None:
        """Remember what was just written to a file, in place of the folder's round before."""
        for factor in state.factors:
            factor.flags.writeable = False
        with self._lock:
            self._kept.pop(file.path.parent, None)
            self._kept[file.path.parent] = (fingerprint, file), state
            while len(self._kept) > self._MOST:
                del self._kept[next(iter(self._kept))]

    def get(self, file: Version, fingerprint: str) -> SiteState | None:
        """What the file holds; None if that is not known, or the file is another by now."""
        with self._lock:
            known, state = self._kept.get(file.path.parent, (None, None))
        return state if known == (fingerprint, file) else None


_recent = _Recent()


def has_state(folder: Path) -> bool:
    """Whether a job's folder holds factors of a round."""
    return any(folder.glob(f"{_STATE}*.npy"))


def has_jobs(folder: Path) -> bool:
    """Whether a job was ever begun in a site's folder, so that a ledger must be there.

    Job folders may be deleted; then what lies beside the ledger, and says what it had, is left.
    """
    if not folder.exists():
        return False
    return verified_head(folder / LEDGER) is not None or any(p.is_dir() for p in folder.iterdir())
