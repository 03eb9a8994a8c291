"""How far float32 may end from exact arithmetic: tolerances that are derived, not chosen.

Standard model of floating point (Higham 2002, *Accuracy and Stability of Numerical Algorithms*,
section 2.2): an operation gives its exact result times 1 + d, |d| <= u, and below the normal
numbers plus at most half a subnormal one; u = 2^-24 for float32. From it follow, in whatever order
and with whatever fused multiply-adds a processor computes, so on every machine:

- a sum of n terms is off by at most (n - 1) u / (1 - (n - 1) u) times the sum of their absolute
  values (section 4.2), and a product of n factors by as many u relative to itself (section 3.1);
- along a computation the bounds of its parts add up (running error analysis, section 3.3), which is
  what `Bounded` does.

Fused multiply-adds leave roundings out, so a bound that counts them all still holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FLOAT32 = np.dtype(np.float32)
DIVISION = 4
"""Roundings of a division: fast-math may multiply by a reciprocal that is an estimate, refined by
a Newton step to a unit or two in the last place."""


def unit(dtype: Any = FLOAT32) -> float:
    """u of a type; a thousandth more, for products of roundings, which are counted nowhere."""
    return float(np.finfo(dtype).eps) / 2 * (1 + 1e-3)


_UNIT = unit()
_SUBNORMAL = float(np.finfo(np.float32).smallest_subnormal)


def gamma(roundings: int, dtype: Any = FLOAT32) -> float:
    """Most that so many roundings, one after the other, change, relative to what is rounded."""
    n = roundings * unit(dtype)
    assert n < 0.1, "so many roundings that nothing is known any more"
    return n / (1 - n)


def assert_within(found: Any, expected: Any, bound: Any) -> None:
    """Each value no further from the expected one than its bound; a NaN is too far.

    `expected` is in float64, whose own roundings are 2^29 times smaller than those counted: the
    bounds of n float32 roundings have room for as many of float64 and many more.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    excess = np.abs(found - expected) - bound
    wrong = ~(excess <= 0)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} are out of bounds; at {tuple(map(int, worst))} "
        f"{found[worst]:.9g} where {expected[worst]:.9g} was expected, "
        f"to {np.broadcast_to(bound, excess.shape)[worst]:.3g}"
    )


class Bounded:
    """Float64 values, and how far float32 arithmetic may be from each; operations keep both.

    Attributes
    ----------
    value, bound : ndarray of float64
    """

    __array_ufunc__ = None  # NumPy's arrays leave operations with these to the methods below

    def __init__(self, value: Any, bound: Any = 0.0) -> None:
        self.value = np.array(value, np.float64)
        self.bound = np.zeros_like(self.value) + bound

    @classmethod
    def of(cls, x: Any) -> Bounded:
        """What already is one; a float32 array, exactly; a Python number, rounded to float32."""
        if isinstance(x, Bounded):
            return x
        if isinstance(x, float):
            return cls(x).rounded()
        assert getattr(x, "dtype", FLOAT32) == FLOAT32
        return cls(x)

    def rounded(self, times: int = 1) -> Bounded:
        """Rounded to float32 so many times."""
        added = times * (_UNIT * (np.abs(self.value) + self.bound) + _SUBNORMAL)
        return Bounded(self.value, self.bound + added)

    def __getitem__(self, place: Any) -> Bounded:
        return Bounded(self.value[place], self.bound[place])

    def __setitem__(self, place: Any, new: Bounded) -> None:
        self.value[place], self.bound[place] = new.value, new.bound

    def __add__(self, other: Any) -> Bounded:
        other = Bounded.of(other)
        return Bounded(self.value + other.value, self.bound + other.bound).rounded()

    def __sub__(self, other: Any) -> Bounded:
        other = Bounded.of(other)
        return Bounded(self.value - other.value, self.bound + other.bound).rounded()

    def __mul__(self, other: Any) -> Bounded:
        other = Bounded.of(other)
        bound = np.abs(self.value) * other.bound + self.bound * np.abs(other.value)
        return Bounded(self.value * other.value, bound + self.bound * other.bound).rounded()

    def __rsub__(self, other: Any) -> Bounded:
        return Bounded.of(other) - self

    __radd__, __rmul__ = __add__, __mul__

    def total(self) -> Bounded:
        """Sum over the last axis, in any order; zeros, and so padding, add no rounding."""
        terms = max(1, int(np.count_nonzero(np.abs(self.value) + self.bound, axis=-1).max()))
        size = (np.abs(self.value) + self.bound).sum(axis=-1)
        bound = self.bound.sum(axis=-1) + gamma(terms - 1) * size + terms * _SUBNORMAL
        return Bounded(self.value.sum(axis=-1), bound)

    def norm(self) -> Bounded:
        """2-norm over the last axis: squares, a sum of n, a root, so (n + 1) / 2 + 1 roundings.

        The norm of a sum is at most the sum of the norms, so the bounds' own norm bounds the rest.
        """
        value, bound = (np.linalg.norm(x, axis=-1) for x in (self.value, self.bound))
        return Bounded(value, bound).rounded(self.value.shape[-1] // 2 + 2)

    def at_least(self, floor: float) -> Bounded:
        """The larger of both, which brings what is close no further apart."""
        return Bounded(np.maximum(self.value, floor), self.bound)

    def share_of(self, length: float) -> Bounded:
        """``min(1, length / self)`` for what is not negative: the less, the longer this is."""
        low, high = np.maximum(self.value - self.bound, 0), self.value + self.bound
        with np.errstate(divide="ignore"):
            least, value, most = (
                np.minimum(1, length / x) for x in (high, self.value, low)
            )  # fmt: skip
        return Bounded(value, np.maximum(most - value, value - least)).rounded(DIVISION)
