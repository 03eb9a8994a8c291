"""A site's ledger, as tests read it."""

from pathlib import Path

from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow


def rows_in(folder: Path) -> tuple[LedgerRow, ...]:
    """What a site was charged for, by its ledger, which must be in order; none without a ledger."""
    if not (folder / LEDGER).exists():
        return ()
    with Ledger(folder, create=False) as ledger:
        assert ledger.verify() == []
        return ledger.rows()
