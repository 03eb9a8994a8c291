"""Formatting of numbers, the same in the report and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable

_NUMBERS = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty",
)  # fmt: skip
_SMALLEST_P = 0.001
_OUTCOMES = {"died": "death in hospital", "readmitted": "readmission"}


def outcome(label: str) -> str:
    """Return the name of a label's outcome, or the label itself if it is not in the list."""
    return _OUTCOMES.get(label, label)


def counted(count: int) -> str:
    """Write a number for a sentence: as a word up to twenty, then in digits."""
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"


def size(count: float) -> str:
    """Write a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Write a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def p_value(p: float) -> str:
    """Write a p-value with its relation sign, as in the tables of medical journals."""
    return f"p < {_SMALLEST_P:g}" if p < _SMALLEST_P else f"p = {p:.3f}"


def odds(coefficient: float) -> str:
    """Write the odds ratio of log odds, with few digits and never as 0.00."""
    if coefficient < math.log(0.005):
        return "<0.01"
    if coefficient > math.log(99.5):
        return ">99"
    ratio = math.exp(coefficient)
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def number(value: float) -> str:
    """Write a number with four significant digits, or from 1000 on as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Write a share as a percentage with one decimal and a proper minus sign."""
    return f"{100 * share:.1f} %".replace("-", "−")


def ranges(numbers: Iterable[int]) -> str:
    """Write ascending numbers as ranges: ``1–3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
