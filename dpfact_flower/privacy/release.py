"""Define `Release`, the only type that the Flower client puts into a message.

Only functions of `privacy` make a `Release`: `perturb` in `paper`, `release` in `patient`, and in
this module `replay`, `release_masked` and the three functions without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.privacy.events import ReleaseEvent, claim_of
from dpfact_flower.tensor.arrays import Array


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """The values that a site sends, with one event per array, or no events without noise.

    The arrays are read-only float32: feature factors, each of shape (I_n, R), or one vector of
    statistics. In a secure sum, the arrays hold bytes.
    """

    arrays: tuple[Array, ...]
    events: tuple[ReleaseEvent, ...]

    @property
    def seeded(self) -> bool:
        """Whether a seed generated any of the noise."""
        return any(event.seeded for event in self.events)

    @property
    def label(self) -> str:
        """The claim for this release, as text to print."""
        return claim_of(self.events) if self.arrays else "nothing was released"

    def __repr__(self) -> str:
        # Print shapes only, because released values do not belong in a log.
        return f"Release({[array.shape for array in self.arrays]}, {self.label!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Share:
    """A site's part of a secure sum, with the site's own noise. Only masked shares leave the site.

    `values` are in units of the noise's grid, slot after slot. `events` has the cost of the values,
    and of all sums with the other sites' values.
    """

    values: NDArray[np.int64]
    events: tuple[ReleaseEvent, ...]

    @property
    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """The values as a tuple, as in `Release`, for the ledger."""
        return (self.values,)

    @property
    def label(self) -> str:
        """The claim for this share, as text to print."""
        return claim_of(self.events)

    def __repr__(self) -> str:
        return f"Share({len(self.values)} values, {self.label!r})"


def release_masked(parts: Sequence[Array]) -> Release:
    """Make a release from the bytes of a secure sum. The charge of the `Share` covers the cost."""
    return Release(tuple(parts), ())


def replay(arrays: Sequence[Array], events: Sequence[ReleaseEvent]) -> Release:
    """Make a release again from kept arrays and events, for repeated requests only."""
    copies = [np.array(array) for array in arrays]
    for number, array in enumerate(copies, start=1):
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DataError(f"release: array {number} does not hold finite floats")
    return Release(tuple(map(fixed, copies)), tuple(events))


def release_nothing() -> Release:
    """Make an empty release, for a round in which nothing leaves the site."""
    return Release((), ())


def release_unprotected(factors: Sequence[Array]) -> Release:
    """Release factors without noise, events or guarantee, for ``privacy = "none"``."""
    return Release(tuple(fixed(factor) for factor in checked_factors(factors)), ())


def release_unprotected_sum(values: Array) -> Release:
    """Release a sum over a site's patients without noise or guarantee, for ``privacy = "none"``."""
    if values.ndim != 1 or not np.isfinite(values).all():
        raise DataError("release: need a vector of finite numbers")
    return Release((fixed(values),), ())


def checked_factors(factors: Sequence[Array]) -> tuple[Array, ...]:
    """Return read-only copies of feature factors, which must be finite and of one rank."""
    matrices = tuple(np.array(factor) for factor in factors)
    if not matrices:
        raise DataError("factors: need at least one feature factor")
    for mode, matrix in enumerate(matrices, start=1):
        if matrix.ndim != 2 or 0 in matrix.shape or matrix.dtype.kind != "f":
            raise DataError(f"factors: mode {mode} must be a non-empty matrix of floats")
        if matrix.shape[1] != matrices[0].shape[1]:
            raise DataError(f"factors: mode {mode} has a different rank from mode 1")
        if not np.isfinite(matrix).all():
            raise DataError(f"factors: mode {mode} is not finite")
        matrix.flags.writeable = False
    return matrices


def fixed(values: Array) -> NDArray[np.float32]:
    """Return values as read-only float32. The caller must hold the only reference to `values`."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32, copy=False)
    if not np.isfinite(rounded).all():
        raise SettingsError("release: values or noise are too large for float32")
    rounded.flags.writeable = False
    return rounded
