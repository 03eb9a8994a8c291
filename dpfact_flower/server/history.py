"""What the server notes about each round: `history.jsonl`, one line per round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dpfact_flower.errors import DataError, heard
from dpfact_flower.machine.files import add_line, replacing
from dpfact_flower.machine.parsed import from_json

HISTORY = "history.jsonl"


@dataclass(frozen=True)
class Failure:
    """A site that was asked and did not give a usable reply."""

    who: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", heard(self.reason))


class Arrival(NamedTuple):
    """A reply, where replies are used when they come.

    Attributes
    ----------
    site : str
    round : int
        That it answers.
    staleness : int
        Updates of the model between the question and this reply.
    used : bool
        False where that was too many, and the reply was left out.
    """

    site: str
    round: int
    staleness: int
    used: bool = True


@dataclass(frozen=True)
class RoundRecord:
    """What the server notes about a round: one line of `history.jsonl`.

    Attributes
    ----------
    round : int
    sites : tuple of str
        Names of the sites whose releases were used, sorted.
    failures : tuple of Failure
    updated : bool
        False where the quorum was missed and the global factors stayed as they were.
    bytes_down, bytes_up : int
        Bytes of the messages as Flower serialises them: server to sites, sites to server.
    seconds : float
        From sending the requests until the last reply is read, without the update.
    ended : str
        When, UTC, in ISO format; empty in records of before that was noted.
    quorum_seconds : float
        From sending the requests until as many sites as the quorum had answered; 0 where they did
        not, or it was not noted.
    arrivals : tuple of Arrival
        Where replies are used on arrival, those that came in the round, in their order.
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

    @cached_property
    def line(self) -> str:
        """The record as JSON, made once: a checkpoint has those of all rounds before it."""
        return json.dumps(asdict(self))

    @property
    def answers(self) -> list[tuple[str, int, bool]]:
        """Each site that answered, the round that it answered, and whether that was used."""
        if self.arrivals:
            return [(each.site, each.round, each.used and self.updated) for each in self.arrivals]
        return [(site, self.round, self.updated) for site in self.sites]

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> RoundRecord:
        """Read what `dataclasses.asdict` and JSON made of a record."""
        failures = tuple(Failure(**failure) for failure in line["failures"])
        own = {"round": int(line["round"]), "sites": tuple(line["sites"]), "failures": failures}
        own["arrivals"] = tuple(
            Arrival(str(site), int(number), int(staleness), bool(used))
            for site, number, staleness, used in line.get("arrivals", ())
        )
        return cls(**{**line, **own})


class History:
    """The file `history.jsonl` of a run.

    Parameters
    ----------
    folder : Path
    durable : bool
        Whether a new line waits for the disk.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._path, self._durable = folder / HISTORY, durable
        self._size = 0
        """As this process left the file; 0 before that."""

    def note(self, records: Sequence[RoundRecord]) -> None:
        """Append the newest record to a file that is as it was left; write them all to any other.

        A line may be missing or cut off where a process died or the disk was full.
        """
        if self._size and self._path.exists() and self._path.stat().st_size == self._size:
            self._size = add_line(self._path, records[-1].line, durable=self._durable)
            return
        with replacing(self._path, durable=self._durable) as file:
            file.write("".join(f"{record.line}\n" for record in records).encode())
            self._size = file.tell()


def read_history(folder: Path) -> list[RoundRecord]:
    """Rounds of a run's `history.jsonl`, in order.

    Raises
    ------
    DataError
        If the file is missing, or a line is damaged, which is named.
    """
    path = folder / HISTORY
    if not path.exists():
        raise DataError(f"{path}: no such file; is this the folder of a run?")
    try:
        return read_lines(path.read_bytes().splitlines())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_lines(lines: Iterable[bytes | str]) -> list[RoundRecord]:
    """Records from their lines.

    Raises
    ------
    DataError
        Naming the line that is damaged.
    """
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(RoundRecord.from_dict(from_json(line)))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise DataError(f"line {number} is damaged") from None
    return records
