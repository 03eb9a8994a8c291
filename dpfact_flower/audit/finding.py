"""The result of one check in an audit: a measured number and its allowed range."""

import math
from dataclasses import dataclass

ALPHA = 1e-6
"""Probability that a statistical check of correct code fails by chance."""
Z_LIMIT = 5.0
"""Largest allowed error in standard errors. The probability of a larger error is below `ALPHA`."""


@dataclass(frozen=True)
class Finding:
    """A check's measured number (NaN after an error) and the number's allowed range."""

    name: str
    measured: float
    allowed: tuple[float, float]
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the number is in its allowed range."""
        return self.allowed[0] <= self.measured <= self.allowed[1]

    @property
    def allowed_text(self) -> str:
        """The allowed range as text."""
        low, high = self.allowed
        if low == high:
            return f"{low:g}"
        if high == math.inf:
            return f"at least {low:.4g}"
        return f"{low:.4g} to {high:.4g}"


def count_of(name: str, number: int, detail: str = "") -> Finding:
    """Return a finding that passes only if `number`, a count of faults, is 0."""
    return Finding(name, float(number), (0.0, 0.0), detail)
