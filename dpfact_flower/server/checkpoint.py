"""`checkpoint.npz`: all that is needed to continue a run, written after each round.

`received.npz` has the same form, and what sites sent for arrays: of a round that later ones build
on, until it is closed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.errors import DataError, StateError
from dpfact_flower.machine.files import disk_errors, replacing
from dpfact_flower.machine.npy import load_npz
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.server.history import RoundRecord, read_lines
from dpfact_flower.settings import check_name
from dpfact_flower.tensor.arrays import Array

CHECKPOINT = "checkpoint.npz"
RECEIVED = "received.npz"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run between two rounds.

    Attributes
    ----------
    identity : dict
        What must agree for a continuation to be the same run.
    job : str
    rounds : int
        How many the run will have.
    records : list of RoundRecord
    arrays : mapping of str to ndarray
        The rule's: `ServerRule.state`. In `RECEIVED`, the replies'.
    """

    identity: dict[str, Any]
    job: str
    rounds: int
    records: list[RoundRecord]
    arrays: Mapping[str, Array]

    @property
    def finished_rounds(self) -> int:
        """Rounds already finished."""
        return self.records[-1].round if self.records else 0

    def write(self, path: Path, *, durable: bool) -> None:
        """Write it in place of the previous one."""
        meta = {"identity": self.identity, "job": self.job, "rounds": self.rounds}
        history = "\n".join(record.line for record in self.records)
        with replacing(path, durable=durable) as file:
            np.savez(
                file,
                meta=np.array(json.dumps(meta)),
                history=np.array(history),
                **self.arrays,  # type: ignore[arg-type]
            )

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read what `write` wrote.

        Raises
        ------
        StateError
            If it is damaged, or may not be read.
        """
        with disk_errors(path):
            path.open("rb").close()
        try:
            arrays = load_npz(path, ["meta", "history"])
            meta = from_json(str(arrays.pop("meta")))
            check_name("job", meta["job"])
            records = read_lines(str(arrays.pop("history")).splitlines())
            return cls(dict(meta["identity"]), meta["job"], int(meta["rounds"]), records, arrays)
        except (DataError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise StateError(
                f"{path}: damaged checkpoint ({type(error).__name__}); restore it from a copy, or "
                "start a new run"
            ) from None
