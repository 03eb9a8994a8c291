"""A site's ledger, as tests write and read it."""

from pathlib import Path

import numpy as np

from dpfact_flower.privacy import PAPER_CLAIM, PATIENT_CLAIM, Release, ReleaseEvent
from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow, ReleaseKey

SECRET = 9876543.0
KINDS = {"entry": ("replace", PAPER_CLAIM), "patient": ("add-remove", PATIENT_CLAIM)}


def charge(
    ledger: Ledger, job: str, number: int, *units: str, values: int = 3, seeded: bool = False
) -> None:
    """Charge a round, with one event for each of `units`; without units, it has no noise."""
    events = tuple(
        ReleaseEvent(
            name=f"round {number}, mode {place}", sensitivity=0.5, sigma=20.0 + place,
            count=values, unit=unit, neighbours=KINDS[unit][0], claim=KINDS[unit][1], seeded=seeded,
        )
        for place, unit in enumerate(units)
    )  # fmt: skip
    release = Release((np.full(values, SECRET, np.float32),), events)
    ledger.charge(ReleaseKey("f" * 64, job, number, "asked"), "terms", release, ledger.head())


def rows_in(folder: Path) -> tuple[LedgerRow, ...]:
    """What a site was charged for, by its ledger, which must be in order; none without a ledger."""
    if not (folder / LEDGER).exists():
        return ()
    with Ledger(folder, create=False) as ledger:
        assert ledger.verify() == []
        return ledger.rows()
