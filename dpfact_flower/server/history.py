"""The server's records of rounds: `history.jsonl`, one line per round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from dpfact_flower.errors import DataError, heard
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import from_json

HISTORY = "history.jsonl"


@dataclass(frozen=True)
class Failure:
    """A site without a usable reply, and the reason."""

    who: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", heard(self.reason))


class Arrival(NamedTuple):
    """A reply in an asynchronous round, which was used at its arrival.

    `staleness` counts the updates of the model between the request and the reply.
    """

    site: str
    round: int
    staleness: int


@dataclass(frozen=True)
class RoundRecord:
    """A round as one line of `history.jsonl`.

    `sites` has the sorted names of the sites with usable replies. `updated` is False if the quorum
    was missed and the global factors stayed unchanged. Both times begin when requests are sent:
    `seconds` ends when the last reply is read, and `quorum_seconds` when the quorum has answered (0
    if the quorum was missed). `ended` is UTC in ISO format. `arrivals` lists the replies of an
    asynchronous round in their order.
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

    @cached_property  # each checkpoint contains the lines of all rounds
    def line(self) -> str:
        """The record as JSON."""
        return json.dumps(asdict(self))

    @property
    def answers(self) -> list[tuple[str, int, bool]]:
        """For each answer, the site, the round, and whether the answer was used."""
        answered = [(arrival.site, arrival.round) for arrival in self.arrivals]
        answered = answered or [(site, self.round) for site in self.sites]
        return [(site, number, self.updated) for site, number in answered]


def write_history(folder: Path, records: Iterable[RoundRecord], *, durable: bool) -> None:
    """Replace a run's `history.jsonl`."""
    with replacing(folder / HISTORY, durable=durable) as file:
        file.write("".join(f"{record.line}\n" for record in records).encode())


def read_history(folder: Path) -> list[RoundRecord]:
    """Read a run's `history.jsonl`. Raise a `DataError` if the file is missing or damaged."""
    path = folder / HISTORY
    try:
        return read_lines(path.read_bytes().splitlines())
    except OSError as error:
        why = f"cannot be read ({error.strerror}); is this the folder of a run?"
        raise DataError(f"{path}: {why}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_lines(lines: Sequence[bytes | str]) -> list[RoundRecord]:
    """Parse records from their lines. A `DataError` names a damaged line."""
    records = []
    for number, text in enumerate(lines, start=1):
        try:
            line = from_json(text)
            values = {
                "round": int(line["round"]),
                "sites": tuple(line["sites"]),
                "failures": tuple(Failure(**failure) for failure in line["failures"]),
                "arrivals": tuple(Arrival(*fields) for fields in line["arrivals"]),
            }
            records.append(RoundRecord(**{**line, **values}))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise DataError(f"line {number} is damaged") from None
    return records
