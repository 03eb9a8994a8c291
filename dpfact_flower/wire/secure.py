"""Define the part of a request that describes a stage of a secure sum.

The stage `keys` occurs once per job, and the stage `sum` once per attempt to compute a sum. The
stage `open` occurs only if `Sharing.dropouts` is above 0. All stages of a sum concern the same
release, so a request's digest does not depend on the stage.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from dpfact_flower.errors import MessageError, shown
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.secure_sum.keys import Member
from dpfact_flower.settings import LARGEST, check_name

Stage = Literal["keys", "sum", "open"]
_MOST_SITES = 1000
_MOST_TEXT = 4096


@dataclass(frozen=True)
class SecureStage:
    """A stage of a secure sum.

    If a site drops out, the server makes a new `attempt` with fewer sites. `members` lists all
    sites that sent keys, sorted by name. `asked` lists all sites in the stage `keys`, and the
    attempt's sites in the stages `sum` and `open`. In the stage `open`, `sealed` maps other sites'
    names to shares of those sites' secrets, encrypted for the receiver of the request.
    """

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
        return json.dumps({
            "stage": self.stage, "attempt": self.attempt,
            "members": [[m.site, _text(m.key), _text(m.signature)] for m in self.members],
            "asked": list(self.asked),
            "sealed": {site: _text(share) for site, share in self.sealed.items()},
        })  # fmt: skip

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse a received stage. Raise a `MessageError` if the text is invalid."""
        try:
            content = from_json(text)
            members = tuple(
                Member(_site(site), _bytes(key), _bytes(signature))
                for site, key, signature in content["members"]
            )
            asked = tuple(map(_site, content["asked"]))
            sealed = {_site(site): _bytes(share) for site, share in content["sealed"].items()}
            stage, attempt = content["stage"], content["attempt"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MessageError(f"secure sum: damaged ({type(error).__name__})") from None
        if stage not in get_args(Stage) or type(attempt) is not int or not 0 <= attempt <= LARGEST:
            raise MessageError(f"secure sum: no such stage or attempt, got {shown(stage)}")
        for key, sites in (("members", [m.site for m in members]), ("asked", list(asked))):
            if sites != sorted(set(sites)) or len(sites) > _MOST_SITES:
                raise MessageError(f"secure sum: {key} must be different names in order")
        names = asked if stage == "keys" else [member.site for member in members]
        if not names or not {*asked, *sealed} <= set(names):
            raise MessageError("secure sum: asked and sealed must name members")
        return cls(stage, attempt, members, asked, sealed)


def sealed_text(shares: Mapping[str, bytes]) -> bytes:
    """Serialise shares for a reply, given a mapping from other sites' names to shares."""
    return json.dumps({site: _text(share) for site, share in shares.items()}).encode()


def read_sealed(content: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """Read the shares from the output of `sealed_text`. Refuse shares for sites not in `names`."""
    try:
        sealed = {_site(site): _bytes(share) for site, share in from_json(content).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise MessageError(f"secure sum: damaged shares ({type(error).__name__})") from None
    if not sealed.keys() <= set(names):
        raise MessageError("secure sum: shares of sites that were not asked")
    return sealed


def _text(content: bytes) -> str:
    return b64encode(content).decode()


def _bytes(text: object) -> bytes:
    if not isinstance(text, str) or len(text) > _MOST_TEXT:
        raise ValueError("text")
    return b64decode(text, validate=True)


def _site(name: object) -> str:
    check_name("secure sum: site", name)
    return str(name)
