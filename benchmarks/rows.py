"""Rows of the result, and functions that time calls for these rows."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

TARGETS_FOR = "two Xeon cores (family 6, model 167) with nothing else to do"
"""The machine to which targets in units of time apply. Ratios apply to any machine."""
LOST = "not told from nothing"
"""Note for a time difference without a value."""
_UNITS_OF_TIME = ("s", "ns/nnz", "1/s")


@dataclass(frozen=True)
class Timing:
    """The seconds that several repetitions took."""

    seconds: tuple[float, ...]
    cpu: float = math.nan
    """CPU time over wall time. Below 1, another process used the core."""
    difference: bool = False
    """Whether each value is a difference of two times, which may be negative on a busy machine."""

    @classmethod
    def of_more(cls, few: Sequence[float], many: Sequence[float], more: int) -> "Timing":
        """Return the time per iteration.

        A call of `many` runs `more` iterations more than one of `few`. Other costs cancel out.
        """
        pairs = zip(few, many, strict=True)
        return cls(tuple((b - a) / more for a, b in pairs), difference=True)

    @property
    def median(self) -> float:
        """Median, in seconds."""
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float(high - low) / self.median


@dataclass(frozen=True)
class Row:
    """One figure. It has no target if it is only reported, and no value if it was not measured."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    at_least: bool = False
    """Whether the target is a lower bound."""
    spread: float | None = None
    best: float | None = None
    """The smallest repetition, which a busy machine affects least."""
    repetitions: int = 1
    cpu: float | None = None
    note: str = ""

    @classmethod
    def of(cls, name: str, timing: Timing, unit: str, scale: float = 1.0, **more: Any) -> "Row":
        """Return a row with the median. `scale` converts seconds to the unit.

        A difference of zero or less is too short to measure on a busy machine, so it has no value.
        """
        if timing.difference and timing.median <= 0:
            more["note"] = "; ".join(filter(None, (LOST, more.get("note"))))
            return cls(name, None, unit, repetitions=len(timing.seconds), **more)
        return cls(
            name, timing.median * scale, unit, spread=timing.spread,
            best=min(timing.seconds) * scale, repetitions=len(timing.seconds),
            cpu=None if math.isnan(timing.cpu) else timing.cpu, **more,
        )  # fmt: skip

    @property
    def met(self) -> bool | None:
        """Whether the target is met, or None if there is no target or no value."""
        if self.target is None or self.value is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def target_for(self) -> str | None:
        """Machine to which an absolute target applies, or None for a ratio or without a target."""
        absolute = self.target is not None and self.unit in _UNITS_OF_TIME
        return TARGETS_FOR if absolute else None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as it is written to ``bench.json``."""
        return asdict(self) | {"met": self.met, "target_for": self.target_for}


def timed(function: Callable[[], object], repetitions: int, shortest: float) -> Timing:
    """Return a call's wall time after a warm-up. Short calls run several times per repetition."""
    function()
    began = time.perf_counter()
    function()
    inner = max(1, math.ceil(shortest / max(time.perf_counter() - began, 1e-9)))
    seconds, cpu, wall = [], 0.0, 0.0
    for _ in range(repetitions):
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(inner):
            function()
        passed = time.perf_counter() - began
        cpu += time.process_time() - cpu_began
        wall += passed
        seconds.append(passed / inner)
    return Timing(tuple(seconds), cpu / wall)


def value_of(found: Sequence[Row], name: str) -> float | None:
    """Return the value of a row that was measured earlier."""
    return next(row.value for row in found if row.name == name)


def ratio(name: str, peer: Row, ours: float | None, target: float | None = None) -> Row:
    """Return a row with the ratio of the time of `peer` to our time."""
    if peer.value is None or ours is None:
        return Row(name, None, "x", target, at_least=True, note="one of the two has no value")
    return Row(name, peer.value / ours, "x", target, at_least=True, spread=peer.spread)


def write(path: Path, content: Any) -> None:
    """Write rows or other content as readable JSON."""
    if isinstance(content, list):
        content = [row.to_dict() for row in content]
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def show(found: Sequence[Row]) -> None:
    """Print the table."""
    width = max(len(row.name) for row in found)
    head = f"{'':{width}} {'median':>10} {'best':>10} {'':9} {'spread':>7} {'target':>9} {'':6}"
    print(f"\n{head}\n{'-' * len(head)}")
    for row in found:
        value = "-" if row.value is None else f"{row.value:.4g}"
        best = "" if row.best is None else f"{row.best:.4g}"
        spread = "" if row.spread is None else f"{row.spread:.1%}"
        bound = "" if row.target is None else f"{'>=' if row.at_least else '<='} {row.target:g}"
        met = {None: "", True: "met", False: "MISSED"}[row.met]
        print(
            f"{row.name:{width}} {value:>10} {best:>10} {row.unit:9} {spread:>7} "
            f"{bound:>9} {met:6} {row.note}".rstrip()
        )
    targets = [row for row in found if row.met is not None]
    print(f"\n{sum(bool(row.met) for row in targets)} of {len(targets)} targets met")
    absolute = [row.name for row in targets if row.target_for]
    if absolute:
        print(f"{len(absolute)} of them are absolute, for {TARGETS_FOR}: {', '.join(absolute)}")
