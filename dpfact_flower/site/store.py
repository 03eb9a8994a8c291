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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.machine.files import add_line, for_owner, private_folder, replacing
from dpfact_flower.machine.npy import load_npz
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.ledger import LEDGER, verified_head
from dpfact_flower.settings import Scalar
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.error import SquaredError

ENDING = "ending.npz"
_SELECTION = "selection.sha256"
_CLOSED = "DATA-HAS-CHANGED.txt"
_CLOSED_TEXT = """This run was begun with other data than the site has by now, and stops here.
Start a new run. Only if the data is again what it was, this file may be deleted.
"""
_STATE = "state-"
_NOTICE = "NOT-TO-BE-SHARED.txt"
_NOTICE_TEXT = """The files of this folder are made from this site's patients and are not private.
No noise protects them and no epsilon covers them: neither the factors in state-*.npz nor the
measures in history.jsonl, nor anything that is made from them. They are for this site's own use.
"""


@dataclass(frozen=True, eq=False)
class SiteState:
    """A site's own factors after a round, un-noised and patients first; never sent.

    `eta` is the step size in force.
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


class SiteStore:
    """A site's folder for one job: ``state-dir/site/job/``.

    Parameters
    ----------
    root : path
        The site's `state-dir`.
    site, job : str
        Checked names: they become folders.
    fingerprint : str
        Of the site's data; state of other data is refused. Not needed for what is public.
    durable : bool
        Whether writing waits for the disk. False is for simulations only.
    """

    def __init__(
        self,
        root: str | Path,
        site: str,
        job: str,
        fingerprint: str = "",
        *,
        durable: bool = True,
    ) -> None:
        self.folder = Path(root) / site / job
        for path in (self.folder.parents[1], self.folder.parent, self.folder):
            check_own(path)
        self._fingerprint = fingerprint
        self._durable = durable

    def begin(self) -> None:
        """Make the job's folder, with a note for whoever finds it."""
        notice = self.folder / _NOTICE
        if not notice.exists():
            private_folder(self.folder)
            with open(notice, "w", encoding="utf-8", opener=for_owner) as file:
                file.write(_NOTICE_TEXT)

    def save(self, state: SiteState) -> None:
        """Keep a round's factors beside those before; on return they are on the disk."""
        head = {"round": state.round, "eta": state.eta}
        self._write(self._path(state.round), head, state.factors)

    def load(self, round_number: int | None = None) -> SiteState | None:
        """Factors that a round left behind; None where it left none.

        The ledger says which round. Without a number it is the latest that there is a file of,
        which is for looking on. A StateError names a file that is damaged or of other data.
        """
        if round_number is None:
            path = max(self.folder.glob(f"{_STATE}*.npz"), default=self._path(0))
        else:
            path = self._path(round_number)
        if not path.exists():
            return None
        way_out = "restore the folder from a copy, or start a new job"
        (number, eta), factors = self._read(path, ("round", "eta"), way_out)
        return SiteState(number, tuple(factors), eta)

    def keep_only(self, round_number: int) -> None:
        """Delete the factors of all rounds but one, once the ledger has that round."""
        for path in self.folder.glob(f"*{_STATE}*"):  # what `replacing` left begins with a dot
            if path != self._path(round_number):
                path.unlink(missing_ok=True)

    def keep_ending(self, arrays: Sequence[NDArray[Any]], config: Mapping[str, Scalar]) -> None:
        """Keep the last request of a run, which is public: the first that came counts."""
        path = self.folder / ENDING
        if not path.exists():
            self._write(path, {"config": dict(config)}, arrays)

    def ending(self) -> tuple[list[NDArray[Any]], dict[str, Scalar]] | None:
        """The last request of the run as it travelled; None where it did not come."""
        path = self.folder / ENDING
        if not path.exists():
            return None
        way_out = "delete it, and let the centre repeat the last round"
        (config,), arrays = self._read(path, ("config",), way_out)
        return arrays, config

    def _path(self, round_number: int) -> Path:
        return self.folder / f"{_STATE}{round_number:06d}.npz"

    def _write(self, path: Path, head: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> None:
        self.begin()
        text = json.dumps({"fingerprint": self._fingerprint, "arrays": len(arrays), **head})
        with replacing(path, durable=self._durable) as file:
            np.savez(file, *arrays, head=np.array(text))

    def _read(
        self, path: Path, keys: tuple[str, ...], way_out: str
    ) -> tuple[list[Any], list[NDArray[Any]]]:
        """Values and arrays as `_write` wrote them: each has its checksum in the archive."""
        try:
            found = load_npz(path, ["head"])
            head = from_json(str(found.pop("head")))
            arrays = [found[f"arr_{number}"] for number in range(head["arrays"])]
            fingerprint, *values = (head[key] for key in ("fingerprint", *keys))
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}: damaged ({type(error).__name__}); {way_out}") from None
        if fingerprint != self._fingerprint:
            raise StateError(
                f"{path}: made from other data; if the data has changed, start a new job"
            )
        return values, arrays

    def has_selection(self, digest: str) -> bool:
        """Whether a job's selection of codes is the one that is noted, if any is."""
        path = self.folder / _SELECTION
        return not path.exists() or path.read_bytes() == digest.encode()

    def note_selection(self, digest: str) -> None:
        """Note a job's selection of codes, where none is noted: the first counts."""
        path = self.folder / _SELECTION
        if not path.exists():
            self.begin()
            with replacing(path, durable=self._durable) as file:
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

    def note(self, measures: RoundMeasures) -> None:
        """Append a line to the site's own `history.jsonl`."""
        add_line(self.folder / "history.jsonl", json.dumps(asdict(measures)), durable=False)

    def history(self) -> list[RoundMeasures]:
        """Lines of `history.jsonl`, the last one of each round."""
        path = self.folder / "history.jsonl"
        rounds: dict[int, RoundMeasures] = {}
        lines = path.read_bytes().splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                measures = _measures(from_json(line))
                rounds[int(measures.round)] = measures
            except (KeyError, TypeError, ValueError):
                raise StateError(f"{path}: line {number} is damaged") from None
        return [rounds[number] for number in sorted(rounds)]


def _measures(line: dict[str, Any]) -> RoundMeasures:
    lists = {key: tuple(line[key]) for key in ("objective", "column_norms")}
    return RoundMeasures(**{**line, **lists, "error": SquaredError(**line["error"])})


def has_state(folder: Path) -> bool:
    """Whether a job's folder holds factors of a round."""
    return any(folder.glob(f"{_STATE}*.npz"))


def has_jobs(folder: Path) -> bool:
    """Whether a job was ever begun in a site's folder, so that a ledger must be there.

    Job folders may be deleted; then what lies beside the ledger, and says what it had, is left.
    """
    if not folder.exists():
        return False
    return verified_head(folder / LEDGER) is not None or any(p.is_dir() for p in folder.iterdir())
