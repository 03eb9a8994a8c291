"""The ledger of a site, which stores every release on the site's disk before it is sent.

One SQLite file per site, ``state-dir/site/ledger.sqlite``. A row is a release: the request, the
charge, and the sent values as float32. For values without noise, the row has only a hash. The
budget belongs to the site's patients, so every charged row counts, for any job or data.

Durability
----------
`Ledger.charge` returns after the row, events and bytes are on the disk, in one transaction. With a
rollback journal (journal_mode DELETE), the ledger is one file between transactions, and a copy of
this file is complete. The commit is the deletion of the journal, and only synchronous EXTRA makes
it durable. Otherwise a power loss could restore the state before the charge. A new ledger gets its
name only when it is complete, so an empty or truncated file is always damaged. In a simulation
(`durable` False), SQLite leaves writing to the operating system.

Evidence
--------
A row is a JSON document. The row's hash is the SHA-256 of the previous row's hash and this
document. All hashes are checked at every use of the ledger, which detects damage and careless
edits. The newest head is also noted in a file next to the ledger (`verified_head`), which detects a
restored old copy. To detect a rewrite of the whole chain and the note, keep the `Head` elsewhere
(the site logs it).

Secrecy
-------
A head is a commitment to the rows, because each row has random bytes. Instead of a fingerprint of
the data, a row has the fingerprint's HMAC under a key next to the ledger. The time in a row
is the time of the request. A head, a backup and `dpfact ledger show` therefore reveal only the
released values. The key, and a folder that contains it, are patient data.

Two processes may use one ledger. The folder must be on a local disk, because SQLite's locks are
unreliable on network shares.
"""

from dpfact_flower.privacy.ledger.file import (
    LEDGER,
    Head,
    LedgerRow,
    ReleaseKey,
    data_key,
    data_tag,
    read_key,
    verified_head,
)
from dpfact_flower.privacy.ledger.ledger import Ledger, back_up, restore

__all__ = [
    "LEDGER", "Head", "Ledger", "LedgerRow", "ReleaseKey", "back_up", "data_key", "data_tag",
    "read_key", "restore", "verified_head",
]  # fmt: skip
