"""Old copies: a rolled-back ledger is refused, and only a complete backup can be restored."""

import shutil
from pathlib import Path

import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.privacy.ledger import LEDGER, Ledger, back_up, noted_head, restore
from tests.cli.test_privacy import ledger_text
from tests.ledgers import charge, rows_in
from tests.privacy.ledger.test_ledger import alter


def filled(folder: Path, count: int) -> Path:
    """Write a ledger with the first rounds of a job."""
    with Ledger(folder, create=True) as ledger:
        for number in range(ledger.head().rows + 1, count + 1):
            charge(ledger, "job", number, "patient")
    return folder


@pytest.fixture
def site(tmp_path) -> Path:
    return filled(tmp_path / "state" / "north", 4)


def note_of(folder: Path) -> Path:
    return folder / f"{LEDGER}-head"


@pytest.mark.parametrize("other", ["an older copy", "one cut off", "a new one", "as long a one"])
def test_a_ledger_that_was_rolled_back_is_refused(site, tmp_path, other):
    """Its budget would be the budget at the time of the copy."""
    copies = {"an older copy": shutil.copytree(site, tmp_path / "older"),
              "as long a one": filled(tmp_path / "same", 5)}  # fmt: skip
    newer = shutil.copytree(filled(site, 5), tmp_path / "newer")
    path = site / LEDGER
    if other == "one cut off":
        alter("DELETE FROM releases WHERE number = 5")(path)
    else:
        path.unlink()
    if other in copies:
        shutil.copy(copies[other] / LEDGER, path)
    with Ledger(site, create=True) as ledger:
        for use in (ledger.rows, ledger.events, lambda: ledger.release_of("job", 1)):
            with pytest.raises(StateError, match="it was rolled back or replaced"):
                use()
        (problem,) = ledger.verify()
        assert "rolled back" in problem
    shutil.copy(newer / LEDGER, path)  # the newest copy
    assert len(rows_in(site)) == 5


def test_a_newer_ledger_than_the_noted_one_is_good(site):
    told = note_of(site).read_text()
    filled(site, 5)
    note_of(site).write_text(told)
    assert len(rows_in(site)) == 5


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * 200_000, b"\xff", b"4:abc"])
def test_a_damaged_note_counts_for_nothing(site, content):
    note_of(site).write_bytes(content)
    assert len(rows_in(site)) == 4
    filled(site, 5)
    assert noted_head(site / LEDGER).rows == 5  # a new one


def test_a_note_that_cannot_be_written_hinders_nothing(site):
    note_of(site).unlink()
    note_of(site).mkdir()
    filled(site, 5)
    assert len(rows_in(site)) == 5


def test_a_backup_is_made_at_work_and_put_back_where_the_ledger_is_lost(site, tmp_path):
    with Ledger(site, create=True) as at_work:
        text = ledger_text("backup", site.parent, "--to", tmp_path / "copy")
        charge(at_work, "job", 5, "patient")
    noted = text.split("head ")[1].strip()
    assert (tmp_path / "copy" / LEDGER).stat().st_mode & 0o077 == 0
    assert "OK: 4 rows" in ledger_text("verify", tmp_path / "copy", "--noted", noted)
    shutil.rmtree(site)
    assert "OK: 4 rows" in ledger_text("restore", tmp_path / "copy", site, "--noted", noted)
    with Ledger(site, create=False) as ledger:
        assert str(ledger.head()) == noted
        charge(ledger, "job", 5, "patient")
        assert ledger.verify() == []


@pytest.mark.parametrize("note_is_kept", [False, True])
def test_a_backup_that_lacks_a_charge_is_not_put_back(site, tmp_path, note_is_kept):
    noted, last = back_up(site, tmp_path / "copy"), noted_head(filled(site, 5) / LEDGER)
    (site / LEDGER).unlink()
    if not note_is_kept:
        note_of(site).unlink()
    way_out = "delete ledger.sqlite-head" if note_is_kept else f"give --noted its own head, {noted}"
    with pytest.raises(StateError, match=f"5 rows, the ledger 4: .* a newer copy, .* {way_out}"):
        ledger_text("restore", tmp_path / "copy", site, "--noted", noted if note_is_kept else last)
    assert not (site / LEDGER).exists()
    note_of(site).unlink(missing_ok=True)  # the way out
    assert restore(tmp_path / "copy", site, noted) == noted


@pytest.mark.parametrize("name", [LEDGER, f"{LEDGER}-journal"])
def test_nothing_that_is_there_is_replaced(site, tmp_path, name):
    head = back_up(site, tmp_path / "copy")
    (site / LEDGER).unlink()
    (site / name).write_bytes(b"damaged")
    with pytest.raises(StateError, match="never replaced"):
        restore(tmp_path / "copy", site, head)
    assert (site / name).read_bytes() == b"damaged"
    with pytest.raises(StateError, match="there is a ledger already"):
        back_up(tmp_path / "copy", tmp_path / "copy")


def test_a_damaged_ledger_makes_no_backup_and_a_damaged_backup_no_ledger(site, tmp_path):
    head = back_up(site, tmp_path / "copy")
    for path in (tmp_path / "copy" / LEDGER, site / LEDGER):
        content = bytearray(path.read_bytes())
        content[content.index(b"round 2, mode 0")] ^= 1
        path.write_bytes(content)
    with pytest.raises(StateError, match="row 2"):
        back_up(site, tmp_path / "other")
    (site / LEDGER).unlink()
    with pytest.raises(StateError, match="row 2"):
        restore(tmp_path / "copy", site, head)
    for use in (back_up, lambda *folders: restore(*folders, head)):
        with pytest.raises(StateError, match="there is no ledger here"):
            use(site, tmp_path / "third")
    ledger_text("verify", tmp_path / "copy", code=1)
