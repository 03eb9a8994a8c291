"""Ledgers of simulated sites: a connection goes on with the very file it left, and no other."""

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.privacy import release_unprotected
from dpfact_flower.privacy.ledger import LEDGER, Ledger, ReleaseKey
from dpfact_flower.privacy.ledger.idle import _MOST, idle


@pytest.fixture(autouse=True)
def none_left():
    idle.close()
    yield
    idle.close()


def simulated(folder: Path) -> Ledger:
    return Ledger(folder, durable=False)


def charge(folder: Path, round_number: int, *, durable: bool = False) -> sqlite3.Connection:
    """Charge a round as one message does; returns the connection that did."""
    release = release_unprotected((np.full((4, 3), round_number, np.float32),))
    with Ledger(folder, durable=durable) as ledger:
        ledger.charge(ReleaseKey("f" * 64, "job", round_number, "asked"), "terms", release)
        return ledger._connection


def rounds(folder: Path) -> list[int]:
    with closing(Ledger(folder)) as ledger:
        assert ledger.verify() == []
        return [row.round for row in ledger.rows()]


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_the_next_message_takes_the_connection_of_the_last(tmp_path):
    first = charge(tmp_path, 1)
    assert all(charge(tmp_path, number) is first for number in (2, 3))
    assert rounds(tmp_path) == [1, 2, 3]


def test_of_two_that_were_left_for_one_file_the_later_is_kept(tmp_path):
    first, path = charge(tmp_path, 1), tmp_path / LEDGER
    for _ in range(2):
        idle.give(path, first)  # it takes no place but its own
        assert not is_closed(first)
    second = sqlite3.connect(path, check_same_thread=False)
    idle.give(path, second)
    assert is_closed(first)
    assert idle.take(path) is second
    second.close()


def test_a_real_sites_connection_is_closed_and_takes_nobody_elses(tmp_path):
    first = charge(tmp_path, 1, durable=True)
    assert is_closed(first)
    assert charge(tmp_path, 2) is not first
    assert is_closed(charge(tmp_path, 3, durable=True))
    assert rounds(tmp_path) == [1, 2, 3]


def test_two_at_a_time_have_one_each(tmp_path):
    with simulated(tmp_path) as one, simulated(tmp_path) as other:
        assert one._connection is not other._connection
    kept = list(idle._connections.values())
    assert len(kept) == 1
    assert is_closed(next(each._connection for each in (one, other) if each._connection != kept[0]))


@pytest.mark.parametrize("how", ["written by another", "replaced", "gone"])
def test_a_file_that_is_not_as_it_was_left_is_opened_anew(tmp_path, how):
    folder = tmp_path / "site"
    first = charge(folder, 1)
    if how == "written by another":
        charge(folder, 2, durable=True)
    elif how == "replaced":  # by one that is as long
        charge(tmp_path / "other", 7)
        os.replace(tmp_path / "other" / LEDGER, folder / LEDGER)
    else:
        (folder / LEDGER).unlink()
    found = {"written by another": [1, 2], "replaced": [7], "gone": []}[how]
    with simulated(folder) as ledger:
        assert ledger._connection is not first
        assert [row.round for row in ledger.rows()] == found
    charge(folder, 9)
    assert rounds(folder) == [*found, 9]


def test_a_file_that_has_gone_meanwhile_leaves_nothing_open(tmp_path):
    ledger = simulated(tmp_path)
    (tmp_path / LEDGER).unlink()
    ledger.close()
    assert is_closed(ledger._connection)
    assert not idle._connections


def test_to_close_twice_is_to_close(tmp_path):
    ledger = simulated(tmp_path)
    ledger.close()
    ledger.close()
    assert charge(tmp_path, 1) is ledger._connection
    assert rounds(tmp_path) == [1]


def test_another_thread_may_go_on(tmp_path):
    first, found = charge(tmp_path, 1), []
    thread = threading.Thread(target=lambda: found.append(charge(tmp_path, 2)))
    thread.start()
    thread.join()
    assert found == [first]
    assert rounds(tmp_path) == [1, 2]


def test_of_many_the_oldest_are_closed(tmp_path):
    connections = [charge(tmp_path / str(site), 1) for site in range(_MOST + 3)]
    assert [is_closed(each) for each in connections] == [True] * 3 + [False] * _MOST


def test_after_an_error_the_connection_is_in_no_transaction(tmp_path):
    first = charge(tmp_path, 1)

    def fail() -> None:
        with simulated(tmp_path) as ledger, ledger._transaction("IMMEDIATE"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    charge(tmp_path, 2, durable=True)  # would wait for a lock that is held
    assert not first.in_transaction
    assert rounds(tmp_path) == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_takes_no_connection_along(tmp_path):
    first = charge(tmp_path, 1)
    child = os.fork()
    if child == 0:
        ready = not idle._connections and is_closed(first) and not idle._lock.locked()
        os._exit(0 if ready else 1)
    assert os.waitpid(child, 0)[1] == 0
    charge(tmp_path, 2)
    assert rounds(tmp_path) == [1, 2]
