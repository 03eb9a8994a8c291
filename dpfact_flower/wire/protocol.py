"""Define requests and replies, and check received messages at the server and at sites.

Each message is a list of arrays and a flat config of scalars, as Flower's `NumPyClient` needs.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, MessageError, SettingsError, shown
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.settings import LARGEST, PrivacySettings, Scalar, SolverSettings, check_name
from dpfact_flower.tensor import Factors, Selection
from dpfact_flower.wire.packing import pack, unpack
from dpfact_flower.wire.secure import SecureStage

PROTOCOL_VERSION = 4
SPEAKERS = "the server must run the strategy dpfact_flower.DPFact or dpfact_flower.legacy.DPFact"
"""Advice at the end of errors about messages in an unknown format."""
_NO_ARRAYS = (np.empty(0, np.float32),)
"""Placeholder for an empty list, which Flower's layout would turn into an unreadable array."""
MAX_FACTOR = 1e6
"""Largest entry of a feature factor in a message. With larger entries, a single cell could decide
whether a solver succeeds."""
MAX_STATISTIC = 1e15
"""Largest valid value of a released statistic, above any sum over patients and safe in float32."""
ROUND_TIMEOUT = "round-timeout"
"""Key in a preflight's config for the time limit of the next round, in seconds."""
_ANSWERED = "answered"
_USAGES = "usages"
_SECURE = "secure"
_DEFAULTS = SolverSettings().to_config() | PrivacySettings().to_config()
_REQUIRED = [key for key, default in _DEFAULTS.items() if default != ""]
"""Settings that no request may omit, because a server's defaults may differ."""
VERSION = "version"
"""Key in a preflight's reply for the site's version of this package."""
_T = TypeVar("_T", str, int, float)


@dataclass(frozen=True, eq=False)
class RoundRequest:
    """The server's request to a site for one round.

    The public `seed` determines the site's initial values and the order in which the solver visits
    cells, but never the noise. `vocabulary` contains the comma-separated digests of the modes'
    vocabularies, or is empty if the digests are unknown. `anchors` (float32) contains the global
    feature factors, with one row per code and one column per phenotype. Before a run has
    phenotypes, `anchors` is empty. In privacy mode "none", a request without factors asks for
    co-occurrences. In round 1 of a run with long code lists, a request without factors asks for
    code counts. `selection` (int32) contains the positions of each mode's selected codes, or is
    empty if all codes are used. `usages` has the shape (slots, 2, phenotypes) and is used in secure
    sums. For each slot's group of sites, `usages` contains each phenotype's estimated usage and the
    estimate's standard deviation. `answered` maps each site to the last round that it answered.
    """

    job: str
    round: int
    rounds: int
    seed: int
    solver: SolverSettings
    privacy: PrivacySettings
    vocabulary: str
    anchors: Factors
    rule: str
    selection: Selection = ()
    usages: NDArray[np.float64] | None = None
    answered: Mapping[str, int] = field(default_factory=dict)
    secure: SecureStage | None = None

    def to_wire(self) -> tuple[list[NDArray[Any]], dict[str, Scalar]]:
        """Return arrays and a config. Omit empty strings, whose size Flower cannot compute."""
        names = ("job", "round", "rounds", "rule", "seed", "vocabulary")
        config = {
            "protocol": PROTOCOL_VERSION,
            **{name: getattr(self, name) for name in names},
            _ANSWERED: json.dumps(dict(self.answered)) if self.answered else "",
            _USAGES: "" if self.usages is None else json.dumps(self.usages.tolist()),
            _SECURE: self.secure.to_text() if self.secure else "",
            **self.solver.to_config(),
            **self.privacy.to_config(),
        }
        sent = {k: value for k, value in config.items() if value != ""}
        return [*self.anchors, *self.selection] or [*_NO_ARRAYS], sent

    @classmethod
    def from_wire(cls, arrays: Sequence[NDArray[Any]], config: Mapping[str, object]) -> Self:
        """Check a received request. Raise a `MessageError` if the request is invalid."""
        version = config.get("protocol")
        if type(version) is not int or version != PROTOCOL_VERSION:
            raise MessageError(
                f"not a DPFact round of protocol {PROTOCOL_VERSION} "
                f"(protocol: {shown(version)}); {SPEAKERS}"
            )
        if missing := [key for key in _REQUIRED if key not in config]:
            raise MessageError(f"request: lacks {', '.join(missing)}")
        try:
            privacy = PrivacySettings.from_config(config)
            solver = privacy.sent(SolverSettings.from_config(config))
        except SettingsError as error:
            raise MessageError(f"request: {error}") from None
        secure = SecureStage.from_text(_field(config, _SECURE, str)) if _SECURE in config else None
        rounds = _whole(config, "rounds", least=1)
        # The plan has no budget for rounds beyond the planned number.
        number = _whole(config, "round", least=1, most=rounds)
        anchors, selection = _split(arrays, privacy.privacy, number)
        return cls(
            job=_name(config, "job"),
            round=number,
            rounds=rounds,
            seed=_whole(config, "seed", least=0),
            solver=solver,
            privacy=privacy,
            vocabulary=_field({"vocabulary": "", **config}, "vocabulary", str),
            anchors=_checked_factors(anchors, solver.rank),
            selection=_checked_selection(selection),
            rule=_name(config, "rule"),
            usages=_usages(config),
            answered=_answered(config, rounds),
            secure=secure,
        )

    @cached_property
    def terms(self) -> str:
        """SHA-256 of the settings that must stay the same in all rounds of a job.

        A changed setting, such as a tiny step size, could reveal a site's unprotected factors.
        """
        lasting = [item for item in self._config if item[0] not in ("round", _USAGES)]
        return hashlib.sha256(repr(lasting).encode()).hexdigest()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all fields except `secure` and `answered`, to recognise repeated requests."""
        digest = hashlib.sha256(repr(self._config).encode())
        for array in (*self.anchors, *self.selection):
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @cached_property
    def _config(self) -> list[tuple[str, Scalar]]:
        """The sorted config, without the entries that are excluded from `digest`."""
        config = self.to_wire()[1]
        return sorted(item for item in config.items() if item[0] not in (_ANSWERED, _SECURE))


@dataclass(frozen=True, eq=False)
class SiteReply:
    """A site's reply: the site's public name and the released arrays.

    If `step` is not 0, each array is a vector of multiples of `step`.
    """

    site: str
    arrays: tuple[NDArray[np.float32], ...]
    step: float = 0.0

    def to_wire(self) -> tuple[list[NDArray[Any]], dict[str, Scalar]]:
        """Return the reply's arrays and config. Pack the arrays as bytes if `step` is not 0."""
        arrays: list[NDArray[Any]] = [
            pack(array, self.step) if self.step and array.ndim == 1 else array
            for array in self.arrays
        ]
        return arrays or [*_NO_ARRAYS], {"site": self.site}

    @classmethod
    def from_wire(
        cls,
        arrays: Sequence[NDArray[Any]],
        config: Mapping[str, object],
        shapes: Sequence[tuple[int, ...]],
    ) -> Self:
        """Check a received reply against the expected shapes of its arrays."""
        site = _name(config, "site")
        sender = f"reply of site {site!r}"
        received = _present(arrays)
        for place, (array, shape) in enumerate(zip(received, shapes, strict=False)):
            if array.dtype == np.uint8 and array.ndim == len(shape) == 1:  # a packed vector
                received[place] = unpack(array, shape[0], f"{sender}, array {place + 1}")
        shapes_got = [array.shape for array in received]
        if shapes_got != list(shapes):
            raise MessageError(f"{sender}: need shapes {list(shapes)}, got {shown(shapes_got)}")
        for number, array in enumerate(received, start=1):
            limit = MAX_FACTOR if array.ndim == 2 else MAX_STATISTIC
            _check_values(array, f"{sender}, array {number}", limit)
        return cls(site, tuple(np.ascontiguousarray(array) for array in received))


def read_parts(
    arrays: Sequence[NDArray[Any]], config: Mapping[str, object], number: int
) -> tuple[str, list[bytes]]:
    """Check that a secure sum's reply has `number` parts. Return the site's name and the parts."""
    site = _name(config, "site")
    if len(arrays) != number or any(a.dtype != np.uint8 or a.ndim != 1 for a in arrays):
        raise MessageError(f"reply of site {site!r}: need {number} arrays of bytes")
    return site, [array.tobytes() for array in arrays]


def round_timeout(config: Mapping[str, object]) -> float:
    """Return the next round's time limit in seconds, read from a preflight's config."""
    seconds = _field(config, ROUND_TIMEOUT, float)
    if not 0 < seconds < math.inf:
        raise MessageError(f"{ROUND_TIMEOUT}: must lie above 0, got {shown(seconds)}")
    return seconds


def _present(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return a message's arrays, without the placeholder that stands for an empty list."""
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise MessageError(f"message: need arrays, got {type(array).__name__}")
    return [] if len(arrays) == 1 and arrays[0].size == 0 else list(arrays)


def _split(
    arrays: Sequence[NDArray[Any]], mode: str, number: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Split a request's arrays into factors and selections, and refuse wrong combinations.

    In patient mode, `site.patient.check_carries` checks the combination later.
    """
    present = _present(arrays)
    selection = [array for array in present if array.dtype == np.int32]
    anchors = [array for array in present if array.dtype != np.int32]
    fits = bool(anchors) and not selection
    if mode == "none" and not anchors:  # a start: no arrays in round 1, a selection in round 2
        fits = number == (2 if selection else 1)
    if not (fits or mode == "patient"):
        raise MessageError("request: need one float32 array per feature mode, and nothing else")
    return anchors, selection


def _checked_factors(arrays: Sequence[NDArray[Any]], rank: int) -> Factors:
    """Check the feature factors of a request, and return C-contiguous factors."""
    for mode, array in enumerate(arrays, start=1):
        where = f"request, mode {mode}"
        _check_values(array, where, MAX_FACTOR)
        if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] != rank:
            raise MessageError(f"{where}: need shape (features, {rank}), got {shown(array.shape)}")
    return tuple(np.ascontiguousarray(array) for array in arrays)


def _checked_selection(arrays: Sequence[NDArray[Any]]) -> Selection:
    """Check that selected positions are ascending. `check_modes` checks the largest position."""
    for mode, positions in enumerate(arrays, start=1):
        vector = positions.ndim == 1 and len(positions) > 0
        if not vector or positions[0] < 0 or (positions[1:] <= positions[:-1]).any():
            raise MessageError(f"selection, mode {mode}: need ascending positions of codes")
    return tuple(np.ascontiguousarray(positions) for positions in arrays)


def _check_values(array: NDArray[Any], where: str, limit: float) -> None:
    if array.dtype != np.float32:
        raise MessageError(f"{where}: need float32, got {str(array.dtype)[:80]}")
    if not array.size or np.abs(array).max() <= limit:  # false for NaN
        return
    if not np.isfinite(array).all():
        raise MessageError(f"{where}: has values that are not finite")
    raise MessageError(f"{where}: has values beyond {limit:g}")


def _answered(config: Mapping[str, object], rounds: int) -> dict[str, int]:
    try:
        answered = {**from_json(_field({_ANSWERED: "{}", **config}, _ANSWERED, str))}
        for site in answered:
            check_name(_ANSWERED, site)
        return {site: _whole(answered, site, least=1, most=rounds) for site in answered}
    except (TypeError, ValueError):
        raise MessageError(f"{_ANSWERED}: need rounds of this run by site") from None


def _usages(config: Mapping[str, object]) -> NDArray[np.float64] | None:
    if _USAGES not in config:
        return None
    try:
        usages = np.array(from_json(_field(config, _USAGES, str)), np.float64)
    except (OverflowError, TypeError, ValueError):
        usages = np.empty(0)
    if usages.ndim != 3 or not (np.isfinite(usages).all() and (usages >= 0).all()):
        raise MessageError(f"{_USAGES}: need two numbers of 0 or more by slot and phenotype")
    return usages


def _field(config: Mapping[str, object], key: str, kind: type[_T]) -> _T:
    value = config.get(key)
    if type(value) is not kind:
        raise MessageError(f"{key}: need {kind.__name__}, got {type(value).__name__}")
    return value


def _whole(config: Mapping[str, object], key: str, *, least: int, most: int = LARGEST) -> int:
    value = _field(config, key, int)
    if not least <= value <= most:
        raise MessageError(f"{key}: must lie in [{least}, {most}], got {shown(value)}")
    return value


def _name(config: Mapping[str, object], key: str) -> str:
    """Check a name that becomes a folder's name and appears in logs."""
    name = _field(config, key, str)
    try:
        check_name(key, name)
    except DataError as error:
        raise MessageError(str(error)) from None
    return name
