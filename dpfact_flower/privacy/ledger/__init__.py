"""The site's ledger: everything it ever released, on its own disk before it is sent.

One SQLite file per site, ``state-dir/site/ledger.sqlite``. A row is a release: what was asked, what
was charged for it, and the values that were sent, as float32; for values without noise, which cost
nothing to send again, only the hash. The budget belongs to the site's patients, not to a file or a
job: every charged row counts, whatever job or data it names.

Durability
----------
`Ledger.charge` returns when row, events and bytes are on the disk, in one transaction. It uses a
rollback journal (journal_mode DELETE), not a write-ahead log: between transactions the ledger is
one file, so a copy of it is whole, and what is charged never sits in a side file that a backup may
leave out. In that mode synchronous FULL is not enough: the commit is the deletion of the journal,
and only EXTRA makes the deletion itself durable; otherwise a power loss can bring it back, and
with it the state before the charge. An empty ledger is made in full before it gets its name, so a
file that is empty or cut off is damage and never a new start.

A simulated site has no patients to protect from a power loss. There `durable` is False: SQLite
leaves writing to the operating system, and a killed process still loses nothing.

Evidence
--------
A row is one JSON document, and its hash is SHA-256 over the hash of the row before and that text.
All hashes are computed again whenever the ledger is used. That finds damage and careless edits. A
note of the newest head beside the ledger (`verified_head`) finds an old copy put back. Neither can
stop somebody who rewrites the whole chain and the note: for that, note the `Head` elsewhere (the
site logs it).

What it tells
-------------
A head is a commitment: each row has random bytes, which its hash covers. The data's fingerprint is
in no row, but an HMAC of it under a key beside the ledger (`key`). The time of a row is that of its
request. So a head, a backup and `dpfact ledger show` tell nothing of the patients but the released
values themselves, which are charged. The key, and a folder that holds it, are patients' data.

Two processes may use one ledger: writers take turns, and a round has one release. The folder must
be on a local disk, since SQLite's locks are not to be trusted on network shares.
"""

from dpfact_flower.privacy.ledger.file import LEDGER, verified_head
from dpfact_flower.privacy.ledger.key import data_key, data_tag, read_key
from dpfact_flower.privacy.ledger.ledger import Ledger
from dpfact_flower.privacy.ledger.rows import Head, LedgerRow, ReleaseKey

__all__ = [
    "LEDGER", "Head", "Ledger", "LedgerRow", "ReleaseKey", "data_key", "data_tag", "read_key",
    "verified_head",
]  # fmt: skip
