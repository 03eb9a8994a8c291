"""Protect the fingerprint of the data in the ledger by a key next to the ledger.

With a plain hash of the data, anyone who knows all patients but one could test whether that patient
is in the data. The key is random, stays at the site, and is not in the backups of `dpfact ledger
backup`. Without the key, the tag reveals nothing. No budget depends on the key. If the key is lost,
the site makes a new one, running jobs cannot continue, and all charges still count.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.machine.files import create_once, disk_errors

KEY = ".ledger-key"  # not a valid job name, and not in copies of ledger.sqlite*
_BYTES = 32


def read_key(folder: Path) -> bytes | None:
    """Return the key of a site's folder, or None if no key exists."""
    path = folder / KEY
    check_own(path)
    with disk_errors(path):
        if not path.exists():
            return None
        key = path.read_bytes()
    if len(key) != _BYTES:
        raise StateError(
            f"{path}: damaged; delete it, and a new key is made: jobs under way cannot go on, and "
            "nothing that was charged is forgotten"
        )
    return key


def data_key(folder: Path) -> bytes:
    """Return the key of a site's folder, after making a missing key."""
    if read_key(folder) is None:
        with disk_errors(folder / KEY):
            create_once(folder / KEY, secrets.token_bytes(_BYTES))
    key = read_key(folder)
    assert key is not None
    return key


def data_tag(folder: Path, fingerprint: str) -> str:
    """Return a tensor's fingerprint under a site's key, for the ledger and the site's state."""
    return hmac.digest(data_key(folder), fingerprint.encode(), "sha256").hex()
