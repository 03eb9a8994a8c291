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

In simulation, whose sites have no patients to protect from a power loss, `durable` may be False:
SQLite then leaves writing to the operating system, and a killed process still loses nothing. Its
journal stays, marked as void, rather than being recreated; and a connection waits for its site's
next message (`idle`).

Evidence
--------
Each row holds SHA-256 over the hash of the row before and its own content; `Ledger.verify` and
`Ledger.events` compute all again. `Ledger.spent`, on which a site's rounds rely, does so where the
file is not the one that it left behind, and otherwise for the rows since (`mark`): whoever edits a
row makes another file, and only damage below the file system waits for the next `verify`. A mark
that was forged is like a chain that was rewritten: only who may write here can do it, and `verify`
finds it. A ledger that lacks the row that the mark names was set back, and is refused. That finds
damage, careless edits and copies put back. It cannot find that the newest rows are gone where the
mark is gone with them, nor stop somebody who rewrites the whole chain: for that, note the `Head`
elsewhere (the site logs it).

Two processes may use one ledger: writers take turns, and a round has one release. The folder must
be on a local disk, since SQLite's locks are not to be trusted on network shares.
"""

from dpfact_flower.privacy.ledger.book import Ledger
from dpfact_flower.privacy.ledger.file import LEDGER
from dpfact_flower.privacy.ledger.mark import marked_head
from dpfact_flower.privacy.ledger.rows import Head, LastAnswer, LedgerRow, ReleaseKey

__all__ = ["LEDGER", "Head", "LastAnswer", "Ledger", "LedgerRow", "ReleaseKey", "marked_head"]
