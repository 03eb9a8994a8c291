"""Define the part of a request that describes a stage of a secure sum.

The stage `keys` occurs once per job, and the stage `sum` once per attempt to compute a sum. The
stage `open` occurs only if `Sharing.dropouts` is above 0. All stages of a sum concern the same
release, so a request's digest does not depend on the stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self

from dpfact_flower.errors import MessageError, heard
from dpfact_flower.machine.parsed import from_json, parse_as, to_json
from dpfact_flower.privacy.secure_sum.keys import Member
from dpfact_flower.settings import LARGEST, check_name

Stage = Literal["keys", "sum", "open"]
_MOST_SITES = 1000
_MOST_BYTES = 3072  # of one encrypted share
_BASE64 = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}


@dataclass(frozen=True)
class SecureStage:
    """A stage of a secure sum.

    If a site drops out, the server makes a new `attempt` with fewer sites. `members` lists all
    sites that sent keys, sorted by name. `asked` lists all sites in the stage `keys`, and the
    attempt's sites in the stages `sum` and `open`. In the stage `open`, `sealed` maps other sites'
    names to shares of those sites' secrets, encrypted for the receiver of the request.
    """

    __pydantic_config__ = _BASE64
    stage: Stage
    attempt: int = 0
    members: tuple[Member, ...] = ()
    asked: tuple[str, ...] = ()
    sealed: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all sites in the secure sum."""
        return tuple(member.site for member in self.members) or self.asked

    def to_text(self) -> str:
        """Return the stage as JSON text for the request's config."""
        return to_json(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse a received stage. Raise a `MessageError` if the text is invalid."""
        with _one_error():
            stage = parse_as(cls, from_json(text))
            stage._check()
            return stage

    def _check(self) -> None:
        if not 0 <= self.attempt <= LARGEST:
            raise MessageError(f"attempt must lie in [0, {LARGEST}]")
        members, asked = [member.site for member in self.members], list(self.asked)
        for key, sites in (("members", members), ("asked", asked)):
            for site in sites:
                check_name(key, site)
            if sites != sorted(set(sites)) or len(sites) > _MOST_SITES:
                raise MessageError(f"{key} must be different names in order")
        names = asked if self.stage == "keys" else members
        if not names or not {*asked} <= {*names}:
            raise MessageError("asked must name members")
        _check_shares(self.sealed, names)


@dataclass(frozen=True)
class _Sealed:
    """Encrypted shares in a reply, keyed by receiver."""

    __pydantic_config__ = _BASE64
    sealed: Mapping[str, bytes]


def sealed_text(shares: Mapping[str, bytes]) -> bytes:
    """Serialise shares for a reply, given a mapping from other sites' names to shares."""
    return to_json(_Sealed(shares))


def read_sealed(content: bytes, names: Sequence[str]) -> Mapping[str, bytes]:
    """Read the shares from the output of `sealed_text`. Refuse shares for sites not in `names`."""
    with _one_error():
        shares = parse_as(_Sealed, from_json(content)).sealed
        _check_shares(shares, names)
        return shares


def _check_shares(shares: Mapping[str, bytes], names: Sequence[str]) -> None:
    if not shares.keys() <= {*names} or any(len(s) > _MOST_BYTES for s in shares.values()):
        raise MessageError(f"shares must be for sites in the sum, and of up to {_MOST_BYTES} bytes")


@contextmanager
def _one_error() -> Iterator[None]:
    """Turn any error about a received text into a `MessageError` of one short line."""
    try:
        yield
    except ValueError as error:  # including a DataError
        raise MessageError(heard(f"secure sum: damaged ({error})")) from None
