"""Keep a site's ledger, which records every release on disk before the release is sent.

Each site has one SQLite file, ``state-dir/site/ledger.sqlite``. Each row records a release: the
request, the charge and the sent float32 values. If the values have no noise, or are a share of a
secure sum, the row contains only their hash. The budget belongs to the site's patients, so every
charged row counts toward the budget, whatever the job or the data.

*Durability.* `Ledger.charge` returns only after one transaction has written the row, events and
bytes to disk. With a rollback journal (journal_mode DELETE), the ledger is a single file between
transactions, and a copy of this file is complete. Deleting the journal commits the transaction.
Only ``synchronous=EXTRA`` ensures that a power loss cannot undo the deletion and, with it, the
charge. A new ledger file gets its name only when it is complete, so an empty or truncated file
always means damage. If `durable` is False (simulation), the operating system decides when to write.

*Evidence.* Each row is a JSON document. A row's hash is the SHA-256 of the previous row's hash and
the row's document. All hashes are checked on every use of the ledger, to detect damage and careless
edits. A file next to the ledger contains the ledger's newest head: the last hash and the number of
rows (`verified_head`). This file reveals whether an old copy has replaced the ledger. To detect a
rewrite of both files, keep a `Head` from the log elsewhere.

*Secrecy.* A head is a hiding commitment to the rows, because each row includes random bytes. In
place of the data's fingerprint, a row contains an HMAC of the fingerprint, whose key is stored next
to the ledger. The time in a row is the time of the request. A head, a backup and
`dpfact ledger show` therefore reveal nothing about patients except the released values. Protect the
key, and any folder that contains it, like patient data.

Two processes may use the same ledger. The ledger's folder must be on a local disk, because SQLite's
locks are unreliable on network shares.
"""

from dpfact_flower.privacy.ledger.file import LEDGER as LEDGER
from dpfact_flower.privacy.ledger.file import Head as Head
from dpfact_flower.privacy.ledger.file import LedgerRow as LedgerRow
from dpfact_flower.privacy.ledger.file import ReleaseKey as ReleaseKey
from dpfact_flower.privacy.ledger.file import data_key as data_key
from dpfact_flower.privacy.ledger.file import data_tag as data_tag
from dpfact_flower.privacy.ledger.file import read_key as read_key
from dpfact_flower.privacy.ledger.file import verified_head as verified_head
from dpfact_flower.privacy.ledger.ledger import Ledger as Ledger
from dpfact_flower.privacy.ledger.ledger import back_up as back_up
from dpfact_flower.privacy.ledger.ledger import restore as restore
