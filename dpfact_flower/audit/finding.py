"""What an audit found: one measured number, and the range that it must lie in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

ShareDone = Callable[[float], None]
"""Called by an audit with the share of its work that is done."""

ALPHA = 1e-6
"""How often a statistical check may fail when nothing is wrong."""
Z_LIMIT = 5.0
"""Standard errors by which an estimate may be off; beyond, chance is below `ALPHA`."""


@dataclass(frozen=True)
class Finding:
    """One number that an audit measured.

    `measured` is NaN where the audit could not be done, which fails. `allowed` is the lowest and
    the highest value that is right, both included. `detail` is for people.
    """

    name: str
    measured: float
    allowed: tuple[float, float]
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the number lies in the range."""
        return self.allowed[0] <= self.measured <= self.allowed[1]

    @property
    def allowed_text(self) -> str:
        """The range as people write it."""
        low, high = self.allowed
        if low == high:
            return f"{low:g}"
        if low == -math.inf:
            return f"at most {high:.4g}"
        if high == math.inf:
            return f"at least {low:.4g}"
        return f"{low:.4g} to {high:.4g}"


def count_of(name: str, number: int, detail: str = "") -> Finding:
    """Finding that something that must not happen was seen so many times."""
    return Finding(name, float(number), (0.0, 0.0), detail)


def failed(name: str, detail: str) -> Finding:
    """Finding that an audit could not be done."""
    return Finding(name, math.nan, (0.0, 0.0), detail)


def silent(share: float) -> None:
    """Show no progress."""
