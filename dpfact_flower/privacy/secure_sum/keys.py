"""Define the terms of secure sums, the sites' signed keys, and the server's requests to sites.

Hospitals exchange their long-term public keys (Ed25519, RFC 8032) without involving the server. For
each job, a site makes a fresh key (X25519, RFC 7748) and signs this key together with the job's
terms. The server cannot impersonate a site, because only the site itself has the private key.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpfact_flower.errors import MessageError, PrivacyRefusedError, SettingsError, shown

_VERSION = "dpfact secure sum 1"
_KIND = "ed25519:"
_KEY, _SIGNATURE = 32, 64  # bytes


def new_signing_key() -> bytes:
    """Generate a long-term key, and return it as the content of a PEM file."""
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_signing_key(pem: bytes) -> Ed25519PrivateKey:
    """Read a key from the content of a PEM file."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError("secure key: need an Ed25519 private key in PEM, without a password")
    return key


def public_text(key: Ed25519PrivateKey) -> str:
    """Return a key's public half as one line of text, which can be given to other hospitals."""
    return _KIND + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def read_public_key(text: str) -> bytes:
    """Return the 32 bytes of a public key, given the text from `public_text`."""
    kind, colon, encoded = text.strip().partition(":")
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        key = b""
    if kind + colon != _KIND or len(key) != _KEY:
        raise SettingsError(f"public key: need {_KIND} and 44 base64 characters, got {shown(text)}")
    return key


def fingerprint(public_key: bytes) -> str:
    """Return the first 32 hex digits of a key's SHA-256 hash, in groups of four to read aloud."""
    return hashlib.sha256(public_key).digest()[:16].hex(" ", 2)


def hashed(*parts: str | bytes | int) -> bytes:
    """Return the SHA-256 hash of `_VERSION` and all parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in (_VERSION, *parts):
        raw = part.to_bytes(8, "little") if isinstance(part, int) else part
        raw = raw.encode() if isinstance(raw, str) else raw
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


@dataclass(frozen=True)
class Terms:
    """The public conditions of all secure sums in a job, which are the same for every site.

    `settings` is the digest of all other settings on which the sites must agree. `sites` lists the
    sorted names of all sites. At most `colluding` sites are assumed to collude with the server, and
    at most `dropouts` sites may drop out during a sum.
    """

    job: str
    settings: str
    sites: tuple[str, ...]
    colluding: int
    dropouts: int

    @property
    def threshold(self) -> int:
        """Number of sites needed to unmask a sum (`colluding` plus over half of the other sites).

        Each honest site helps only one attempt at a sum, so only one attempt can get enough sites.
        """
        return (len(self.sites) + self.colluding) // 2 + 1

    @cached_property
    def digest(self) -> bytes:
        """Hash of the terms."""
        return hashed("terms", self.job, self.settings, self.colluding, self.dropouts, *self.sites)


@dataclass(frozen=True)
class Member:
    """A site's public key for a job, signed with the site's long-term key."""

    site: str
    key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        if len(self.key) != _KEY or len(self.signature) != _SIGNATURE:
            raise MessageError(
                f"member {shown(self.site)}: need {_KEY} bytes of key and {_SIGNATURE} of signature"
            )


def signed_member(terms: Terms, site: str, key: bytes, signing_key: Ed25519PrivateKey) -> Member:
    """Sign a site's public key for a job, and return the site's entry for the list of members."""
    return Member(site, key, signing_key.sign(_statement(terms, site, key)))


def check_members(
    terms: Terms, members: tuple[Member, ...], peers: Mapping[str, bytes], own_member: Member
) -> None:
    """Refuse unknown sites, too few sites, or a key that is not signed by the key's owner."""
    names = [member.site for member in members]
    if names != sorted({*names}) or not {*names} <= {*terms.sites} or own_member not in members:
        raise PrivacyRefusedError(
            "members: need names from the terms, sorted, once each, and this site with its own key"
        )
    if len(names) < len(terms.sites) - terms.dropouts:
        raise PrivacyRefusedError(
            f"members: {len(names)} of {len(terms.sites)} sites are too few; only {terms.dropouts} "
            "may be lost"
        )
    if len({member.key for member in members}) < len(members):
        raise PrivacyRefusedError("members: two sites have the same key")
    for member in members:
        if member != own_member:
            key = pinned(peers, member.site)
            statement = _statement(terms, member.site, member.key)
            try:
                Ed25519PublicKey.from_public_bytes(key).verify(member.signature, statement)
            except (InvalidSignature, ValueError):
                raise PrivacyRefusedError(
                    f"members: the key of {shown(member.site)} is not signed, for these terms, by "
                    "the long-term key that is pinned at this site"
                ) from None


def pinned(peers: Mapping[str, bytes], site: str) -> bytes:
    """Return the long-term public key that this hospital has stored for a site."""
    if site not in peers:
        raise PrivacyRefusedError(f"members: no key of {shown(site)} is pinned at this site")
    return peers[site]


def _statement(terms: Terms, site: str, key: bytes) -> bytes:
    return hashed("key", terms.digest, site, key)


@dataclass(frozen=True)
class Question:
    """The server's request for all members' masked vectors.

    `request` is the digest of the round's request. Masks cancel only if all sites got the same
    request. If a site drops out before sending its vector, the server makes a new `attempt`.
    `width` is the number of bytes per element of a masked vector. `members` is sorted by name.
    """

    round: int
    request: bytes
    attempt: int
    width: int
    members: tuple[Member, ...]

    @property
    def sites(self) -> list[str]:
        """The names of the members."""
        return [member.site for member in self.members]


def context_of(terms: Terms, question: Question) -> bytes:
    """Return the hash of all values on which sites must agree for their masks to cancel."""
    members = [part for member in question.members for part in (member.site, member.key)]
    return hashed(
        "sum", terms.digest, question.round, question.request, question.attempt, question.width,
        *members,
    )  # fmt: skip
