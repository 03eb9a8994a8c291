"""Noise on feature factors, as the paper has it, and the only type that may leave a site.

Paper mode (`perturb`): unit one tensor entry, neighbours differ in its value, L2 sensitivity
2 tau L eta per factor, Gaussian noise of variance sensitivity**2 / (2 rho). The sensitivity is the
paper's claim and does NOT hold (see `psgd_sensitivity`), so nothing here is a privacy guarantee.
It is kept for reproduction, and every release says so.

Without noise (`release_unprotected`): the release says that too.

Limits of the noise itself
--------------------------
Values are float64 Gaussians rounded to float32. Which floats can come out depends on the value
under the noise, and that leaks (Mironov 2012); only exact integer noise closes it. Tails end at 9.2
standard deviations, beyond which lies 2**-64 of the mass.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpfact_flower.errors import DataError, PrivacyRefusedError, SettingsError
from dpfact_flower.privacy.accounting import sigma_of
from dpfact_flower.privacy.events import (
    PAPER_CLAIM,
    ReleaseEvent,
    at_least_one,
    claim_of,
    positive,
)
from dpfact_flower.settings import PrivacySettings, SolverSettings

Factors = tuple[NDArray[np.floating[Any]], ...]


def psgd_sensitivity(tau: int, clip: float, eta: float) -> float:
    """L2 sensitivity 2 tau L eta that the paper claims for one factor after `tau` P-SGD passes.

    It assumes (Wu et al. 2017) that one loss, convex in all that is updated and L-Lipschitz, is
    visited entry by entry, each entry once a pass in an order that does not depend on the data,
    with eta <= 2/beta, from a start that does not depend on the data. Clipping each entry's data
    gradient to `clip` enforces L (the elastic pull is the same for both neighbours). The rest does
    not hold: the joint pass over the factors is not convex (one pass can exceed the bound), the
    factors carry over un-noised from round to round (the excess grows), the l2,1 prox couples all
    patients, a zero that becomes a one changes the pass's length, sampled zeros may repeat, and the
    step size adapts to the data. So the number is a noise scale, not a bound.

    Parameters
    ----------
    tau : int
        Passes per round, at least 1.
    clip : float
        L, the bound on the norm of an entry's gradient per factor; above 0.
    eta : float
        Step size; where it adapts, the largest.

    Raises
    ------
    SettingsError
        If a value is out of range; with no clipping there is no sensitivity at all.
    """
    return 2 * at_least_one("tau", tau) * positive("clip", clip) * positive("eta", eta)


@dataclass(frozen=True, eq=False, repr=False)
class BoundedFactors:
    """Feature factors as the paper's P-SGD left them, with the sensitivity of that run.

    The sensitivity follows from the settings that made the factors. No function takes it as a
    number, so noise can't be calibrated to another.

    Attributes
    ----------
    factors : tuple of ndarray, each of shape (I_n, R)
        Feature factors alone, never the patients'. Finite.
    solver : SolverSettings
        What they were computed with; ``solver = "psgd"`` and ``clip`` above 0.

    Raises
    ------
    SettingsError
        If the solver does not clip.
    DataError
        If the factors are not finite matrices of one rank.
    """

    factors: Factors
    solver: SolverSettings

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", _checked_factors(self.factors))
        _ = self.sensitivity  # refuses a solver without a clip before anything is released

    @property
    def sensitivity(self) -> float:
        """Claimed L2 sensitivity of each factor; see `psgd_sensitivity`."""
        return psgd_sensitivity(self.solver.tau, self.solver.clip, self.solver.eta)


@dataclass(frozen=True)
class Noise:
    """Source of Gaussian noise. Build one with `from_os`, `from_seed` or `from_settings`.

    Attributes
    ----------
    seeded : bool
        Whether anybody with the seed can compute the noise again.
    """

    _random_bytes: Callable[[int], bytes] = field(repr=False)
    seeded: bool

    @classmethod
    def from_os(cls) -> Noise:
        """Every bit from the operating system's cryptographic generator; nothing to leak."""
        return cls(os.urandom, seeded=False)

    @classmethod
    def from_seed(cls, *key: int) -> Noise:
        """Repeatable noise for simulation; releases are marked "seeded: not private".

        Parameters
        ----------
        *key : int
            Non-negative: the seed, and whatever tells this stream from others (site, round), or
            two sites would add the same noise.
        """
        if not key or any(type(part) is not int or part < 0 for part in key):
            raise SettingsError(f"noise-seed: need integers of 0 or more, got {key!r}")
        # Hashed, for NumPy takes [7] and [7, 0] for the same seed, and splits large integers.
        seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest(), "big")
        return cls(np.random.Generator(np.random.PCG64DXSM(seed)).bytes, seeded=True)

    @classmethod
    def from_settings(
        cls, settings: PrivacySettings, *, stream: Sequence[int], simulation: bool
    ) -> Noise:
        """Build the source that the settings ask for.

        Parameters
        ----------
        settings : PrivacySettings
            ``noise_seed`` -1 is the operating system.
        stream : sequence of int
            Tells a seeded stream from others: the run's seed, the site, the round.
        simulation : bool
            Whether this process simulates a site.

        Raises
        ------
        PrivacyRefusedError
            If a seed is set outside a simulation: a real site's noise must not be computable.
        """
        if settings.noise_seed < 0:
            return cls.from_os()
        if not simulation:
            raise PrivacyRefusedError("noise-seed: allowed in simulation only; a site needs -1")
        return cls.from_seed(settings.noise_seed, *stream)

    def gaussian(self, shape: tuple[int, ...], sigma: float) -> NDArray[np.float64]:
        """Independent Gaussian values of mean 0 and standard deviation `sigma`."""
        count = int(np.prod(shape))
        words = np.frombuffer(self._random_bytes(8 * count), np.uint64)
        return positive("sigma", sigma) * _standard_normal(words).reshape(shape)

    def integers(self, count: int) -> NDArray[np.int64]:
        """Exact discrete Gaussian values, of the one standard deviation that `noise` has."""
        from dpfact_flower.privacy.noise import discrete_gaussian  # noqa: PLC0415  # numba is slow

        return discrete_gaussian(count, self._random_bytes)


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """What a site sends: the only type the Flower client puts into a message.

    Made by `perturb`, `dpfact_flower.privacy.patient.release`, `release_unprotected` or
    `release_nothing`, and read back by `replay`.

    Attributes
    ----------
    arrays : tuple of ndarray of float32
        Feature factors, each of shape (I_n, R), or one vector of statistics. Read-only.
    events : tuple of ReleaseEvent
        One per array; none if nothing protects them.
    """

    arrays: tuple[NDArray[np.float32], ...]
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
        # Shapes alone: what was released does not belong in a log.
        return f"Release({[array.shape for array in self.arrays]}, {self.label!r})"


def perturb(
    bounded: BoundedFactors,
    rho: float,
    noise: Noise,
    *,
    round_number: int,
    modes: Sequence[str],
) -> Release:
    """Paper mode: add Gaussian noise of variance sensitivity**2 / (2 rho), eq. (priv).

    Unit: one tensor entry. Neighbours: its value replaced. Sensitivity: `psgd_sensitivity` per
    factor, claimed by the paper and not proven.

    Parameters
    ----------
    bounded : BoundedFactors
    rho : float
        Cost in zCDP of each factor; the release costs as many times that as there are factors.
    noise : Noise
    round_number : int
        From 1; names the events.
    modes : sequence of str
        Names of the feature modes, one a factor; names the events.

    Raises
    ------
    SettingsError
        If a value is out of range, or rho is so small that float32 can't hold the noise.
    """
    if len(modes) != len(bounded.factors):
        raise SettingsError(f"modes: need {len(bounded.factors)} names, got {len(modes)}")
    sizes = {mode: f.size for mode, f in zip(modes, bounded.factors, strict=True)}
    events = planned_events(
        bounded.solver, rho, sizes, round_number=round_number, seeded=noise.seeded
    )
    sigma = sigma_of(rho, bounded.sensitivity)
    noisy = tuple(_float32(f + noise.gaussian(f.shape, sigma)) for f in bounded.factors)
    return Release(noisy, events)


def planned_events(
    solver: SolverSettings,
    rho: float,
    sizes: Mapping[str, int],
    *,
    round_number: int,
    seeded: bool,
) -> tuple[ReleaseEvent, ...]:
    """What `perturb` will have released, known before any patient's data is touched.

    Parameters
    ----------
    solver : SolverSettings
        Whose sensitivity holds.
    rho : float
        Cost in zCDP of each factor.
    sizes : mapping of str to int
        Values to be released, for each feature mode.
    round_number : int
        From 1.
    seeded : bool
        Whether the noise comes from a seed.
    """
    at_least_one("round", round_number)
    sensitivity = psgd_sensitivity(solver.tau, solver.clip, solver.eta)
    sigma = sigma_of(rho, sensitivity)
    return tuple(
        ReleaseEvent(
            name=f"round {round_number}, {mode}",
            sensitivity=sensitivity,
            sigma=sigma,
            count=size,
            unit="entry",
            neighbours="replace",
            claim=PAPER_CLAIM,
            seeded=seeded,
        )
        for mode, size in sizes.items()
    )


def replay(arrays: Sequence[NDArray[np.floating[Any]]], events: Sequence[ReleaseEvent]) -> Release:
    """Read a release back as it was kept: for a request that is repeated, and nothing else.

    Raises
    ------
    DataError
        If an array is not of finite floats.
    """
    copies = [np.array(array) for array in arrays]
    for number, array in enumerate(copies, start=1):
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DataError(f"release: array {number} is not of finite floats")
    return Release(tuple(map(_float32, copies)), tuple(events))


def release_nothing() -> Release:
    """An empty release: the answer to a round in which nothing leaves the site."""
    return Release((), ())


def release_unprotected(factors: Factors) -> Release:
    """Factors as they are, for ``privacy = "none"``: no noise, no events, no guarantee.

    Raises
    ------
    DataError
        If the factors are not finite matrices of one rank.
    """
    return Release(tuple(_float32(factor) for factor in _checked_factors(factors)), ())


def _standard_normal(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn uniform 64-bit words into standard normal values: a sign bit, 63 of tail probability.

    Inverting the lower half alone keeps floating point's full precision in both tails.
    """
    tail = (words >> np.uint64(1)).astype(np.float64)
    lower = ndtri((tail + 0.5) * 2.0**-64)
    return np.where(words & np.uint64(1), lower, -lower)


def _checked_factors(factors: Factors) -> Factors:
    matrices = tuple(np.array(factor) for factor in factors)
    if not matrices:
        raise DataError("factors: need at least one feature factor")
    for mode, matrix in enumerate(matrices, start=1):
        if matrix.ndim != 2 or 0 in matrix.shape or matrix.dtype.kind != "f":
            raise DataError(f"factors: mode {mode} must be a non-empty matrix of floats")
        if matrix.shape[1] != matrices[0].shape[1]:
            raise DataError(f"factors: mode {mode} has another rank than mode 1")
        if not np.isfinite(matrix).all():
            raise DataError(f"factors: mode {mode} is not finite")
        matrix.flags.writeable = False
    return matrices


def _float32(values: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Values that nobody else holds, for a release: in float32 and not to be changed."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32, copy=False)
    if not np.isfinite(rounded).all():
        raise SettingsError("release: values or noise are too large for float32")
    rounded.flags.writeable = False
    return rounded
