"""Record preflight answers, decide whether a run may begin, and assign site names to nodes.

The SuperLink registers each hospital's key under the hospital's name. Before any charge, the
preflight refuses a node whose stated name differs from its registered name. For a node without a
registered name, the server uses the first name that the node states.
"""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from dpfact_flower.errors import DataError, QuorumError, code_in, heard
from dpfact_flower.machine.files import disk_errors, replacing
from dpfact_flower.machine.flower import CLOCK_SECONDS
from dpfact_flower.machine.parsed import from_json

_logger = logging.getLogger(__name__)
READINESS = "preflight.json"
_REGISTER = "register each key with its hospital's name: flwr supernode register --name"
_MEANING = {
    "privacy-refused": "it does not allow this mode or rule, or has too little budget or too few "
    "rounds left",
    "message": "it has other code lists, smaller limits or other settings for this job, or lacks "
    "the run's solver or rule",
    "settings": "its own settings do not work",
    "data": "its data file cannot be used",
    "state": "its folder, ledger or disk has a fault, or too many rounds have failed there",
    "late": "its reply-after is too long for the round-timeout",
    "failed": "its reply-after is too short",
    "internal": "an unexpected error, or another version of this package",
}


def called(node: int, site: str) -> str:
    """Return a node's label for messages: the site's name, if known, and the node's number."""
    return f"{site} (node {node})" if site else f"node {node}"


@dataclass(frozen=True)
class Readiness:
    """A site's preflight answer, or a note that no answer came. Unknown fields are empty.

    `fault` is the reason why the site would not answer a round, or is empty if the site would
    answer. The answer's time stamp shows that the site's clock is wrong by at least `clock`
    seconds. If the clock is behind, `clock` is negative.
    """

    node: int
    site: str = ""
    fault: str = ""
    version: str = ""
    clock: float = 0.0

    def __post_init__(self) -> None:
        for name in ("site", "fault", "version"):
            object.__setattr__(self, name, heard(getattr(self, name)))

    @property
    def message(self) -> str:
        """A description of the fault, or an empty string if there is no fault."""
        code = code_in(self.fault)
        meaning = f": {_MEANING[code]}; its own log says more" if code in _MEANING else ""
        name = called(self.node, self.site)
        return f"{name}: {self.fault.partition(' (')[0]}{meaning}" if self.fault else ""

    def warnings(self) -> Iterator[str]:
        """Yield warnings about problems that could stop the run later."""
        name, own = called(self.node, self.site), version("dpfact-flower")
        if self.version and self.version != own:
            yield f"{name} has version {self.version} of dpfact-flower; the server has {own}"
        if abs(self.clock) > CLOCK_SECONDS:
            side = "ahead" if self.clock > 0 else "behind"
            yield f"{name}: its clock is {abs(self.clock):.0f} s {side}; use NTP"


def judge(sites: Sequence[Readiness], *, quorum: int, leave_out: bool) -> frozenset[int]:
    """Return the nodes with a fault, which must be left out of the run.

    If a site is not ready, raise a `QuorumError` that describes every fault. If `leave_out` is
    true, raise a `QuorumError` only if fewer sites than the quorum are ready.
    """
    for warning in (warning for readiness in sites for warning in readiness.warnings()):
        _logger.warning("preflight: %s", warning)
    faulty = [readiness for readiness in sites if readiness.fault]
    for readiness in faulty:
        _logger.error("preflight: %s", readiness.message)
    ready = len(sites) - len(faulty)
    if faulty and not (leave_out and ready >= quorum):
        way = 'correct this, or set preflight = "leave-out" to run without them'
        if leave_out:
            way = f"{ready} site(s) are ready, the quorum (min-sites) is {quorum}"
        faults = [readiness.message for readiness in faulty]
        raise QuorumError("no round began in this attempt, so nothing was charged", faults, way)
    _logger.info("preflight: %d site(s) ready%s", ready, f", {len(faulty)} not" if faulty else "")
    return frozenset(readiness.node for readiness in faulty)


def write_readiness(folder: Path, sites: Sequence[Readiness]) -> None:
    """Write the sites' answers to a run's folder."""
    with disk_errors(folder), replacing(folder / READINESS, durable=False) as file:
        file.write(json.dumps([asdict(readiness) for readiness in sites], indent=1).encode())


def read_readiness(folder: Path) -> list[Readiness]:
    """Read the file that `write_readiness` wrote, or return an empty list if there is no file."""
    path = folder / READINESS
    try:
        return [Readiness(**fields) for fields in from_json(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__})") from None


class SiteNames:
    """The names of a run's nodes. A node without a registered name gets the name that it states."""

    def __init__(self) -> None:
        self.registered: Mapping[int, str] = {}
        self._said: dict[int, str] = {}

    def of(self, node: int) -> str:
        """Return the name of a node's site, or an empty string if the name is unknown."""
        return self.registered.get(node) or self._said.get(node, "")

    def refusal(self, node: int, site: str, connected: Collection[int]) -> str:
        """Return why a node must not use a name. Otherwise, record the name and return ""."""
        if fault := self._fault(node, site, {other: self.of(other) for other in connected}):
            return fault
        self._said = {other: name for other, name in self._said.items() if name != site}
        self._said[node] = site  # a site without a registered key returns as a new node
        return ""

    def checked(self, sites: Sequence[Readiness], *, warn: bool = True) -> list[Readiness]:
        """Return the answers, with a fault for each site whose name conflicts with a known name."""
        claims = {readiness.node: readiness.site for readiness in sites if readiness.site}
        named = []
        for readiness in sites:
            fault = readiness.fault or self._fault(readiness.node, readiness.site, claims)
            site = self.of(readiness.node) if fault else readiness.site
            named.append(replace(readiness, site=site, fault=fault))
        self._said |= {known.node: known.site for known in named if known.site and not known.fault}
        free = [readiness for readiness in sites if readiness.node not in self.registered]
        if free and warn:
            _logger.warning(
                "preflight: %d of %d SuperNodes have no registered name, so their site names "
                "are not tied to their keys; %s", len(free), len(sites), _REGISTER,
            )  # fmt: skip
        return named

    def _fault(self, node: int, site: str, claims: Mapping[int, str]) -> str:
        registered, before = self.registered.get(node), self._said.get(node)
        if registered and site and registered != site:
            return f"calls itself {site!r}, but its key is registered as {registered!r}"
        if not registered and before and site and before != site:
            return f"calls itself {site!r}, but called itself {before!r} before; {_REGISTER}"
        known = {**claims, **self.registered}
        others = claims.keys() & self.registered.keys() if registered else known.keys()
        for other in sorted(others - {node}):
            if site and known[other] == site:
                return f"calls itself {site!r}, as node {other} does; {_REGISTER}"
        return ""
