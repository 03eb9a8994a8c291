"""The file `checkpoint.npz`, which is written after each round and lets a run continue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.errors import DataError, StateError
from dpfact_flower.machine.files import disk_errors, replacing
from dpfact_flower.machine.npy import load_npz
from dpfact_flower.server.history import RoundRecord, read_lines
from dpfact_flower.tensor.arrays import Array

CHECKPOINT = "checkpoint.npz"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run between two rounds.

    `identity` has the settings that must stay the same for the run to continue, and `arrays` the
    rule's `state`.
    """

    identity: dict[str, Any]
    job: str
    rounds: int
    records: list[RoundRecord]
    arrays: Mapping[str, Array]

    @property
    def finished_rounds(self) -> int:
        """Number of finished rounds."""
        return self.records[-1].round if self.records else 0

    def write(self, path: Path, *, durable: bool) -> None:
        """Replace the previous checkpoint."""
        meta = {"identity": self.identity, "job": self.job, "rounds": self.rounds}
        history = "\n".join(record.line for record in self.records)
        notes = {"meta": np.array(json.dumps(meta)), "history": np.array(history)}
        arrays = {**self.arrays, **notes}
        with replacing(path, durable=durable) as file:
            np.savez(file, checksum=np.array(_checksum(arrays)), **arrays)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read a checkpoint. Raise a `StateError` if the file is damaged or cannot be read."""
        with disk_errors(path):
            path.open("rb").close()
        try:
            arrays = load_npz(path, ["checksum", "meta", "history"])
            if str(arrays.pop("checksum")) != _checksum(arrays):
                raise DataError("checksum")
        except DataError:
            raise StateError(
                f"{path}: damaged checkpoint; restore it from a copy, or start a new run"
            ) from None
        meta = json.loads(str(arrays.pop("meta")))
        records = read_lines(str(arrays.pop("history")).splitlines())
        return cls(**meta, records=records, arrays=arrays)


def _checksum(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
