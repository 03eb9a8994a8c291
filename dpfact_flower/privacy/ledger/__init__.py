"""Keep a site's ledger, which records every release on disk before the release is sent.

Each site has one SQLite file, ``state-dir/site/ledger.sqlite``. Each row of the ledger records one
release: the request, the privacy cost and the float32 values that were sent. If the values have no
noise, or are a share of a secure sum, the row contains only a keyed hash of the values. All jobs
and all data files of a site share one privacy budget.

*Durability.* `Ledger.charge` returns only after one transaction has written the row and the
released values to disk. With SQLite's rollback journal (journal_mode DELETE), the ledger is a
single file between transactions, so a copy of this file is complete. SQLite commits a transaction
by deleting the journal. Without ``synchronous=EXTRA``, a power loss could restore the journal and
undo the transaction. A new ledger gets its file name only when it is complete, so an empty or
truncated file is damaged. In simulations (`durable` is False), writes may be delayed.

*Evidence.* A row's hash is the SHA-256 of the previous row's hash and the row's JSON document. All
hashes are checked on every use of the ledger, to detect damage and careless edits. A file next to
the ledger (see `noted_head`) contains the ledger's newest head: the number of rows and the last
hash. An old copy that replaces the ledger does not match the newest head. To detect a rewrite of
the ledger and its head file, copy the heads in the site's log to another machine. Do not copy the
log's times, which reveal how long the site computed.

*Secrecy.* Each row includes random bytes, so the hash in a head reveals nothing about the rows.
Instead of the data's fingerprint, a row contains an HMAC of the job and the fingerprint. The HMAC's
key is stored next to the ledger. The time in a row is the time of the request, which does not
depend on patients' data. A head, a backup and `dpfact ledger show` therefore reveal nothing about
patients except the released values. The key and all copies of its folder need the same protection
as patients' data.

Two processes may use the same ledger at the same time. The ledger's folder must be on a local disk,
because SQLite's locks are unreliable on network shares.
"""

from dpfact_flower.privacy.ledger.file import LEDGER as LEDGER
from dpfact_flower.privacy.ledger.file import Head as Head
from dpfact_flower.privacy.ledger.file import LedgerRow as LedgerRow
from dpfact_flower.privacy.ledger.file import ReleaseKey as ReleaseKey
from dpfact_flower.privacy.ledger.file import data_key as data_key
from dpfact_flower.privacy.ledger.file import keyed_hash as keyed_hash
from dpfact_flower.privacy.ledger.file import noted_head as noted_head
from dpfact_flower.privacy.ledger.file import read_data_key as read_data_key
from dpfact_flower.privacy.ledger.ledger import Ledger as Ledger
from dpfact_flower.privacy.ledger.ledger import back_up as back_up
from dpfact_flower.privacy.ledger.ledger import restore as restore
