"""The data's fingerprint as the ledger stores it: under a key beside the ledger.

A plain hash of the data would tell anyone who knows all other patients whether one more is among
them. The key is random, stays at the site, and is in no backup of `dpfact ledger backup`. Without
the key the tag reveals nothing. No budget depends on it: a lost key is replaced, jobs under way
cannot continue, and all charges still count.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.machine.files import create_once, disk_errors

KEY = ".ledger-key"  # no job can have this name, and no copy of ledger.sqlite* takes it along
_BYTES = 32


def read_key(folder: Path) -> bytes | None:
    """The key of a site's folder; None if there is none yet."""
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
    """The key of a site's folder, made if there is none."""
    key = read_key(folder)
    if key is None:
        with disk_errors(folder / KEY):
            create_once(folder / KEY, secrets.token_bytes(_BYTES))
        key = read_key(folder)
    assert key is not None
    return key


def data_tag(folder: Path, fingerprint: str) -> str:
    """A tensor's fingerprint under a site's key, as in the ledger and the site's state."""
    return hmac.digest(data_key(folder), fingerprint.encode(), "sha256").hex()
