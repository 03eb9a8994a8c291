"""A hospital's keys for secure sums: its own long-term key, and the public keys of all sites.

Hospitals exchange the public keys without the server, because an attacker with write access to the
keys could impersonate a site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.access import check_own, check_private
from dpfact_flower.privacy.secure_sum import keys
from dpfact_flower.settings import SiteSettings


@dataclass(frozen=True)
class Keyring:
    """A site's long-term key, and the public keys of all sites, by name of the site."""

    own: Ed25519PrivateKey
    peers: Mapping[str, bytes]


def keyring_of(settings: SiteSettings, site: str) -> Keyring:
    """Read the keys that a hospital's settings name."""
    for name, value in (("key", settings.secure_key), ("peers", settings.secure_peers)):
        if not value or not Path(value).is_absolute():
            raise SettingsError(
                f"secure-{name}: must be set, to an absolute path, to take part in secure sums; "
                "`dpfact keys` makes the file"
            )
    own_key = read_key_file(Path(settings.secure_key))
    peers = read_peers(Path(settings.secure_peers))
    if peers.get(site) != _public(own_key):
        raise SettingsError(
            f"secure-peers: {settings.secure_peers} must have this site's own name, {site!r}, with "
            "the public key of secure-key"
        )
    return Keyring(own_key, peers)


def simulated_keyring(sites: Sequence[str], site: str) -> Keyring:
    """Make keys from the names of simulated sites; a simulation has no attacker."""
    return Keyring(_simulated_key(site), {name: _public(_simulated_key(name)) for name in sites})


def _simulated_key(site: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(site.encode()).digest())


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def read_key_file(path: Path) -> Ed25519PrivateKey:
    """Read a signing key from a file that only its owner can read."""
    check_private(path)
    return keys.read_signing_key(_read(path))


def read_peers(path: Path) -> dict[str, bytes]:
    """Read names and public keys, one ``NAME KEY`` per line. A `#` begins a comment."""
    check_own(path, reading=True)
    peers: dict[str, bytes] = {}
    lines = _read(path).decode(errors="replace").split("\n")  # no other character ends a line
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] in peers:
            raise SettingsError(f"{path}: line {number} must be NAME KEY, each name once")
        try:
            peers[words[0]] = keys.read_public_key(words[1])
        except SettingsError as error:
            raise SettingsError(f"{path}: line {number}: {error}") from None
    return peers


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
