"""What leaves a site: `Release` is the only type that the Flower client puts into a message.

Every way to make one is a function in this room: `replay`, `release_masked` and the three without
noise here, `perturb` in `paper`, `release` in `patient`. So a search for these shows everything
that leaves.
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
    """What a site sends.

    Attributes
    ----------
    arrays : tuple of ndarray
        In float32 and read-only: feature factors, each of shape (I_n, R), or one vector of
        statistics. In a secure sum, bytes.
    events : tuple of ReleaseEvent
        One per array; none if nothing protects them.
    """

    arrays: tuple[Array, ...]
    events: tuple[ReleaseEvent, ...]

    @property
    def seeded(self) -> bool:
        """Whether any of the noise came from a seed."""
        return any(event.seeded for event in self.events)

    @property
    def label(self) -> str:
        """What is claimed for this release, in the words to print."""
        return claim_of(self.events) if self.arrays else "nothing was released"

    def __repr__(self) -> str:
        # Shapes only: what was released does not belong in a log.
        return f"Release({[array.shape for array in self.arrays]}, {self.label!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Share:
    """A site's part of a secure sum, under its own noise: it leaves the site only masked.

    Attributes
    ----------
    values : ndarray of int64
        In units of the noise's grid, slot after slot.
    events : tuple of ReleaseEvent
        What it costs to give it away, and all its sums with the others'.
    """

    values: NDArray[np.int64]
    events: tuple[ReleaseEvent, ...]

    @property
    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """As of a `Release`, for the ledger."""
        return (self.values,)

    @property
    def label(self) -> str:
        """What is claimed for it, in the words to print."""
        return claim_of(self.events)

    def __repr__(self) -> str:
        return f"Share({len(self.values)} values, {self.label!r})"


def release_masked(parts: Sequence[Array]) -> Release:
    """Bytes of the secure-sum exchange: keys, masked words of a charged `Share`, shares of seeds.

    What they cost is charged with the `Share` that is in the sum.
    """
    return Release(tuple(parts), ())


def replay(arrays: Sequence[Array], events: Sequence[ReleaseEvent]) -> Release:
    """Read a release back as it was kept: for a repeated request, and nothing else."""
    copies = [np.array(array) for array in arrays]
    for number, array in enumerate(copies, start=1):
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DataError(f"release: array {number} does not hold finite floats")
    return Release(tuple(map(fixed, copies)), tuple(events))


def release_nothing() -> Release:
    """An empty release: the answer to a round in which nothing leaves the site."""
    return Release((), ())


def release_unprotected(factors: Sequence[Array]) -> Release:
    """Factors as they are, for ``privacy = "none"``: no noise, no events, no guarantee."""
    return Release(tuple(fixed(factor) for factor in checked_factors(factors)), ())


def release_unprotected_sum(values: Array) -> Release:
    """A sum over a site's patients as it is, for ``privacy = "none"``: no noise, no guarantee."""
    if values.ndim != 1 or not np.isfinite(values).all():
        raise DataError("release: need a vector of finite numbers")
    return Release((fixed(values),), ())


def checked_factors(factors: Sequence[Array]) -> tuple[Array, ...]:
    """Read-only copies of feature factors: finite matrices of floats, of one rank."""
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
    """Values that nobody else holds, for a release: in float32 and not to be changed."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32, copy=False)
    if not np.isfinite(rounded).all():
        raise SettingsError("release: values or noise are too large for float32")
    rounded.flags.writeable = False
    return rounded
