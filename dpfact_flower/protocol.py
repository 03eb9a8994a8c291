"""What server and sites say to each other, and the checks at both doors.

A round is one request (global feature factors and settings) and one reply (a release and the
site's public name). Both travel as a list of arrays and a flat config of scalars, which is what a
`NumPyClient` and both generations of Flower strategies have in common. Nothing else is ever sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.vocabulary import check_name
from dpfact_flower.errors import DataError, DPFactError, MessageError, SettingsError
from dpfact_flower.settings import PrivacySettings, Scalar, SolverSettings
from dpfact_flower.tensor import Factors

PROTOCOL_VERSION = 1
MAX_FACTOR = 1e6
"""Largest entry of a feature factor on the wire: larger ones could make a solver's success or
failure depend on single cells."""
_T = TypeVar("_T", str, int)


@dataclass(frozen=True, eq=False)
class RoundRequest:
    """The server asks a site for one round.

    Attributes
    ----------
    job : str
        Name under which the site keeps its state; the same for all rounds of a run. It becomes a
        folder, so it is checked as a name.
    round : int
        From 1 to `rounds`.
    rounds : int
        Rounds the run will have; planning a budget needs it.
    seed : int
        Public seed of the site's start and visiting order (never of its noise).
    solver, privacy : settings
    vocabulary : str
        Digest of the feature vocabularies, one per mode joined by commas; "" if not known.
    anchors : tuple of ndarray of float32
        Global feature factors, shape (I_n, R) each.
    """

    job: str
    round: int
    rounds: int
    seed: int
    solver: SolverSettings
    privacy: PrivacySettings
    vocabulary: str
    anchors: Factors

    def to_wire(self) -> tuple[list[NDArray[np.float32]], dict[str, Scalar]]:
        """Arrays and config as they travel."""
        return list(self.anchors), {
            "protocol": PROTOCOL_VERSION,
            "job": self.job,
            "round": self.round,
            "rounds": self.rounds,
            "seed": self.seed,
            "vocabulary": self.vocabulary,
            **self.solver.to_config(),
            **self.privacy.to_config(),
        }

    @classmethod
    def from_wire(cls, arrays: Sequence[NDArray[Any]], config: Mapping[str, object]) -> Self:
        """Check a request at the site's door.

        Raises
        ------
        MessageError
            If this is not a DPFact round, a key is missing or out of range, or an array is missing,
            misshapen or not finite.
        """
        version = config.get("protocol")
        if type(version) is not int or version != PROTOCOL_VERSION:
            raise MessageError(
                f"not a DPFact round of protocol {PROTOCOL_VERSION} "
                f"(protocol: {str(version)[:20]!r}); the server must run the strategy "
                "dpfact_flower.DPFact or dpfact_flower.legacy.DPFact"
            )
        # A default of this version need not be the server's: every setting must be there.
        settings = (*SolverSettings.names(), *PrivacySettings.names())
        if missing := [key for key in settings if key not in config]:
            raise MessageError(f"request: lacks {', '.join(missing)}")
        try:
            solver = SolverSettings.from_config(config)
            privacy = PrivacySettings.from_config(config)
        except SettingsError as error:
            raise MessageError(f"request: {error}") from None
        rounds = _field(config, "rounds", int, low=1)
        return cls(
            job=_name(config, "job"),
            # Beyond the rounds that the budget was planned for, a round has no budget.
            round=_field(config, "round", int, low=1, high=rounds),
            rounds=rounds,
            seed=_field(config, "seed", int, low=0),
            solver=solver,
            privacy=privacy,
            vocabulary=_field(config, "vocabulary", str),
            anchors=checked_factors(arrays, rank=solver.rank, who="request"),
        )

    def terms(self) -> str:
        """SHA-256 of what must stay the same from round to round of a job.

        State carries un-noised factors, so noise made for one round's settings must not be the
        noise on another's.
        """
        _, config = self.to_wire()
        del config["round"]
        return hashlib.sha256(repr(sorted(config.items())).encode()).hexdigest()

    def digest(self) -> str:
        """SHA-256 of everything asked: tells a repeated request from another one."""
        arrays, config = self.to_wire()
        digest = hashlib.sha256(repr(sorted(config.items())).encode())
        for array in arrays:
            digest.update(repr(array.shape).encode() + array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class SiteReply:
    """What the server got from one site: its public name and its released feature factors."""

    site: str
    factors: Factors

    def to_wire(self) -> tuple[list[NDArray[np.float32]], dict[str, Scalar]]:
        """Arrays and config as they travel."""
        return list(self.factors), {"site": self.site}

    @classmethod
    def from_wire(
        cls,
        arrays: Sequence[NDArray[Any]],
        config: Mapping[str, object],
        shapes: Sequence[tuple[int, ...]],
    ) -> Self:
        """Check a reply at the server's door; `shapes` are those of the global factors.

        Raises
        ------
        MessageError
            If the site's name is none, or the factors are not of the global ones' shapes.
        """
        site = _name(config, "site")
        factors = checked_factors(arrays, rank=shapes[0][1], who=f"reply of site {site!r}")
        got = [factor.shape for factor in factors]
        if got != list(shapes):
            raise MessageError(f"reply of site {site!r}: need shapes {list(shapes)}, got {got}")
        return cls(site, factors)


def checked_factors(arrays: Sequence[NDArray[Any]], *, rank: int, who: str) -> Factors:
    """Float32 feature factors of a message, C-contiguous and finite.

    Raises
    ------
    MessageError
        Naming the array and what is wrong with it, never a value.
    """
    if not arrays:
        raise MessageError(f"{who}: holds no arrays; need one a feature mode")
    for mode, array in enumerate(arrays, start=1):
        where = f"{who}, mode {mode}"
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            raise MessageError(f"{where}: need float32, got {getattr(array, 'dtype', type(array))}")
        if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] != rank:
            raise MessageError(f"{where}: need shape (features, {rank}), got {array.shape}")
        if not np.isfinite(array).all():
            raise MessageError(f"{where}: has values that are not finite")
        if np.abs(array).max() > MAX_FACTOR:
            raise MessageError(f"{where}: has values beyond {MAX_FACTOR:g}")
    return tuple(np.ascontiguousarray(array) for array in arrays)


def public_reason(error: BaseException) -> str:
    """Text about a failed round that may leave the site: a code, and nothing of the error's own."""
    code = error.code if isinstance(error, DPFactError) else "internal"
    return f"dpfact:{code} (details are in the site's own log)"


def _field(
    config: Mapping[str, object],
    key: str,
    kind: type[_T],
    *,
    low: int | None = None,
    high: int | None = None,
) -> _T:
    value = config.get(key)
    if type(value) is not kind:
        raise MessageError(f"{key}: need {kind.__name__}, got {type(value).__name__}")
    if low is not None and int(value) < low:
        raise MessageError(f"{key}: must be at least {low}, got {value}")
    if high is not None and int(value) > high:
        raise MessageError(f"{key}: must be at most {high}, got {value}")
    return value


def _name(config: Mapping[str, object], key: str) -> str:
    """A name from outside: it becomes a folder and stands in logs."""
    name = _field(config, key, str)
    try:
        check_name(key, name)
    except DataError as error:
        raise MessageError(str(error)) from None
    return name
