"""A backup is whole, and comes back only where nothing is forgotten by it."""

import shutil

import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.privacy.ledger import LEDGER, Head, Ledger, back_up, restore
from tests.cli.test_ledger import charge, ledger_text


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "state" / "north"
    with Ledger(folder) as ledger:
        for number in (1, 2):
            charge(ledger, "job", number, "patient")
    return folder


def head_of(folder) -> Head:
    with Ledger(folder, create=False) as ledger:
        return ledger.head()


def test_a_backup_is_made_at_work_and_put_back_where_the_ledger_is_lost(site, tmp_path):
    with Ledger(site) as at_work:
        at_work.count()
        text = ledger_text("backup", site.parent, "--to", tmp_path / "copy")
        charge(at_work, "job", 3, "patient")
    noted = text.split("head ")[1].strip()
    assert (tmp_path / "copy" / LEDGER).stat().st_mode & 0o077 == 0
    assert "OK: 2 rows" in ledger_text("verify", tmp_path / "copy", "--noted", noted)
    shutil.rmtree(site)
    assert "OK: 2 rows" in ledger_text("restore", tmp_path / "copy", site, "--noted", noted)
    assert str(head_of(site)) == noted
    with Ledger(site, create=False) as ledger:
        ledger.count()
        charge(ledger, "job", 3, "patient")
        assert ledger.verify() == []


def test_a_backup_that_lacks_a_charge_is_not_put_back(site, tmp_path):
    back_up(site, tmp_path / "copy")
    with Ledger(site) as ledger:
        charge(ledger, "job", 3, "patient")
    last = head_of(site)
    shutil.rmtree(site)
    with pytest.raises(StateError, match="3"):
        restore(tmp_path / "copy", site, last)
    assert not (site / LEDGER).exists()


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
        where = content.index(b"round 2, mode 0")
        content[where] ^= 1
        path.write_bytes(content)
    with pytest.raises(StateError, match="row 2"):
        back_up(site, tmp_path / "other")
    (site / LEDGER).unlink()
    with pytest.raises(StateError, match="row 2"):
        restore(tmp_path / "copy", site, head)
    with pytest.raises(StateError, match="there is no ledger here"):
        back_up(site, tmp_path / "third")
    ledger_text("verify", tmp_path / "copy", code=1)
