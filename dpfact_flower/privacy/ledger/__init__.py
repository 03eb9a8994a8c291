"""A site's ledger: all its releases, on its own disk before they are sent.

One SQLite file per site, ``state-dir/site/ledger.sqlite``. A row is a release: the request, the
charge, and the sent values as float32. For values without noise it has only the hash. The budget
belongs to the site's patients: every charged row counts, whatever job or data it names.

Durability
----------
`Ledger.charge` returns when row, events and bytes are on the disk, in one transaction. It uses a
rollback journal (journal_mode DELETE), not a write-ahead log. So between transactions the ledger is
one file, and a copy of it is complete. In that mode the commit is the deletion of the journal, and
only synchronous EXTRA makes the deletion durable. Otherwise a power loss could bring back the state
before the charge. A new ledger is complete before it gets its name, so an empty or truncated file
is always damage.

A simulated site has no patients to protect from a power loss. With `durable` False, SQLite leaves
writing to the operating system; a killed process still loses nothing.

Evidence
--------
A row is one JSON document. Its hash is SHA-256 over the hash of the row before and that text. All
hashes are checked whenever the ledger is used, which finds damage and careless edits. A note of the
newest head beside the ledger (`verified_head`) finds an old copy that was put back. To detect a
rewrite of the whole chain and the note, note the `Head` elsewhere (the site logs it).

Secrecy
-------
A head is a commitment, because each row has random bytes. A row has no fingerprint of the data but
an HMAC of it, under a key beside the ledger (`key`). Its time is that of the request. So a head, a
backup and `dpfact ledger show` reveal nothing about patients but the released values, which are
charged. The key, and a folder that contains it, are patient data.

Two processes may use one ledger: writers take turns, and a round has one release. The folder must
be on a local disk, since SQLite's locks are unreliable on network shares.
"""

from dpfact_flower.privacy.ledger.file import LEDGER, verified_head
from dpfact_flower.privacy.ledger.key import data_key, data_tag, read_key
from dpfact_flower.privacy.ledger.ledger import Ledger
from dpfact_flower.privacy.ledger.rows import Head, LedgerRow, ReleaseKey

__all__ = [
    "LEDGER", "Head", "Ledger", "LedgerRow", "ReleaseKey", "data_key", "data_tag", "read_key",
    "verified_head",
]  # fmt: skip
