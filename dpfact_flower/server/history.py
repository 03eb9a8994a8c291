"""Read and write a run's `history.jsonl` and `checkpoint.npz` on the server.

The server writes a checkpoint after each round, so that an interrupted run can continue.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfact_flower.errors import DataError, StateError, heard
from dpfact_flower.machine.files import disk_errors, replacing
from dpfact_flower.machine.parsed import from_json, load_npz, parse_as
from dpfact_flower.tensor.arrays import Array

HISTORY = "history.jsonl"
CHECKPOINT = "checkpoint.npz"


@dataclass(frozen=True)
class Failure:
    """A site that gave no usable reply, and the reason."""

    who: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", heard(self.reason))

    def __str__(self) -> str:
        return f"{self.who}: {self.reason}"


class Arrival(NamedTuple):
    """A usable reply in an asynchronous run.

    `staleness` is the number of model updates between the request and the reply.
    """

    site: str
    round: int
    staleness: int


@dataclass(frozen=True)
class RoundRecord:
    """The record of a round, stored as one line of `history.jsonl`.

    `sites` contains the sorted names of the sites with usable replies. `updated` is False if a
    missed quorum or a failed sum left the global factors unchanged. `seconds` is the time from
    sending the requests to reading the last reply. `quorum_seconds` is the time until enough sites
    had answered, or 0 if `updated` is False. `ended` is the UTC time at which the round ended, in
    ISO format. `arrivals` lists an asynchronous round's replies in order of arrival. In an
    asynchronous round, `seconds` is the time since the previous round ended, and `quorum_seconds`
    is 0. `dropped` lists other charged sites, which answered only an earlier attempt at the round.
    """

    round: int
    sites: tuple[str, ...]
    failures: tuple[Failure, ...]
    updated: bool
    bytes_down: int
    bytes_up: int
    seconds: float
    ended: str = field(default="", compare=False)
    quorum_seconds: float = 0.0
    arrivals: tuple[Arrival, ...] = ()
    dropped: tuple[str, ...] = ()

    @cached_property  # each checkpoint contains the lines of all rounds
    def line(self) -> str:
        """The record as a line of JSON."""
        return json.dumps(asdict(self))

    @property
    def answers(self) -> list[tuple[str, int, bool]]:
        """The site and round of each charged reply, and whether the server used the reply."""
        answered = [(arrival.site, arrival.round) for arrival in self.arrivals]
        answered = answered or [(site, self.round) for site in self.sites]
        used = [(site, number, self.updated) for site, number in answered]
        return [*used, *((site, self.round, False) for site in self.dropped)]


def write_history(folder: Path, records: Iterable[RoundRecord], *, durable: bool) -> None:
    """Replace a run's `history.jsonl`."""
    with disk_errors(folder), replacing(folder / HISTORY, durable=durable) as file:
        file.write(_lines(records).encode())


def read_history(folder: Path) -> list[RoundRecord]:
    """Read a run's `history.jsonl`. Raise a `DataError` if the file is missing or damaged."""
    path = folder / HISTORY
    try:
        return _records(path.read_bytes().splitlines())
    except OSError as error:
        why = f"cannot be read ({error.strerror}); is this the folder of a run?"
        raise DataError(f"{path}: {why}") from None
    except ValueError:
        raise DataError(f"{path}: damaged; a run with resume = true writes it again") from None


def _lines(records: Iterable[RoundRecord]) -> str:
    return "".join(f"{record.line}\n" for record in records)


def _records(lines: Sequence[bytes | str]) -> list[RoundRecord]:
    return parse_as(list[RoundRecord], [from_json(line) for line in lines])


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run between two rounds.

    `identity` contains the job and the settings that must not change when a run is resumed.
    `records` contains a record for each finished round. `arrays` contains the state of the update
    rule. `missed` contains the record of the next round if the round must be repeated.
    """

    identity: dict[str, Any]
    records: list[RoundRecord]
    arrays: Mapping[str, Array]
    missed: list[RoundRecord]

    def write(self, path: Path, *, durable: bool) -> None:
        """Replace the previous checkpoint."""
        texts = {"history": _lines(self.records), "missed": _lines(self.missed)}
        texts["identity"] = json.dumps(self.identity)
        arrays = {**self.arrays, **{name: np.array(text) for name, text in texts.items()}}
        with disk_errors(path), replacing(path, durable=durable) as file:
            np.savez(file, checksum=np.array(_checksum(arrays)), **arrays)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint. Raise a `StateError` if the file is damaged or cannot be read."""
        with disk_errors(path):  # a file that cannot be opened is not damaged
            path.open("rb").close()
        try:
            arrays = load_npz(path, ["checksum", "identity", "history"])
            if str(arrays.pop("checksum")) != _checksum(arrays):
                raise DataError("checksum")
        except DataError:
            raise StateError(
                f"{path}: damaged checkpoint; restore it from a copy, or start a new run"
            ) from None
        identity = json.loads(str(arrays.pop("identity")))
        records = _records(str(arrays.pop("history")).splitlines())
        missed = _records(str(arrays.pop("missed", "")).splitlines())  # absent before 0.2.0
        return cls(identity, records, arrays, missed)


def _checksum(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
