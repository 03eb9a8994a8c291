"""The newest head beside a ledger: a ledger that was rolled back is refused."""

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.privacy import PATIENT_CLAIM, Release, ReleaseEvent
from dpfact_flower.privacy.ledger import LEDGER, Ledger, ReleaseKey, verified_head
from dpfact_flower.privacy.ledger.file import open_ledger

EVENT = ReleaseEvent("start", 1.0, 900.0, 3, "patient", "add-remove", PATIENT_CLAIM)
RELEASE = Release((np.zeros(3, np.float32),), (EVENT,))


def filled(folder: Path, count: int) -> Path:
    """A ledger with a row for each of some jobs."""
    with Ledger(folder) as ledger:
        for number in range(count):
            ledger.charge(ReleaseKey("f" * 64, f"job-{number}", 1, "asked"), "terms", RELEASE)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return filled(tmp_path / "north", 4)


def note_of(folder: Path) -> Path:
    return folder / f"{LEDGER}-head"


def spent(folder: Path) -> tuple[ReleaseEvent, ...]:
    with Ledger(folder, create=False) as ledger:
        return ledger.events()


def test_the_newest_head_is_noted_for_the_owner_alone(folder):
    with Ledger(folder) as ledger:
        assert verified_head(folder / LEDGER) == ledger.head()
    assert note_of(folder).stat().st_mode & 0o777 == 0o600


def test_a_simulated_site_leaves_none(tmp_path):
    with Ledger(tmp_path, durable=False) as ledger:
        ledger.charge(ReleaseKey("f" * 64, "job", 1, "asked"), "terms", RELEASE)
    assert not note_of(tmp_path).exists()


@pytest.mark.parametrize("other", ["an older copy", "one cut off", "a new one", "as long a one"])
def test_a_ledger_that_was_rolled_back_is_refused(folder, tmp_path, other):
    """Its budget would be what was left when the copy was made."""
    older = shutil.copytree(folder, tmp_path / "older")
    newer = shutil.copytree(filled(folder, 5), tmp_path / "newer")
    path = folder / LEDGER
    if other == "one cut off":
        with closing(open_ledger(path, durable=True)) as connection:
            connection.execute("DELETE FROM releases WHERE number = 5")
    else:
        path.unlink()
    if other == "an older copy":
        shutil.copy(older / LEDGER, path)
    elif other == "as long a one":
        shutil.copy(filled(tmp_path / "same", 5) / LEDGER, path)
    with Ledger(folder) as ledger:
        for use in (ledger.count, ledger.events, lambda: ledger.release_of("job-0", 1)):
            with pytest.raises(StateError, match="it was rolled back or replaced"):
                use()
        (problem,) = ledger.verify()
        assert "rolled back" in problem
    shutil.copy(newer / LEDGER, path)  # the newest copy
    assert spent(folder) == (EVENT,) * 5


def test_a_newer_ledger_than_the_noted_one_is_good(folder):
    told = note_of(folder).read_text()
    filled(folder, 5)
    note_of(folder).write_text(told)
    assert spent(folder) == (EVENT,) * 5


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * 200_000, b"\xff", b"4:abc"])
def test_a_damaged_note_counts_for_nothing(folder, content):
    note_of(folder).write_bytes(content)
    assert spent(folder) == (EVENT,) * 4
    filled(folder, 5)
    assert verified_head(folder / LEDGER).rows == 5  # a new one


def test_a_note_that_cannot_be_written_hinders_nothing(folder):
    note_of(folder).unlink()
    note_of(folder).mkdir()
    filled(folder, 5)
    assert spent(folder) == (EVENT,) * 5
