import logging

import pytest

from dpfact_flower.data import clinical_events as events
from dpfact_flower.data.tables import count_rows
from dpfact_flower.errors import DataError


@pytest.fixture
def connection():
    with events.reading(events.Options(), ["dx"]) as opened:
        yield opened


def add(connection, rows, mode="dx"):
    """Add rows of patient, encounter, time and code."""
    columns = "patient TEXT, encounter TEXT, time BIGINT, code TEXT"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE given ({columns})")
    connection.executemany("INSERT INTO given VALUES (?, ?, ?, ?)", rows)
    return events.add_events(connection, mode, "given")


def test_an_event_is_kept_once_in_one_relation_and_over_several(connection):
    assert add(connection, [("1", "a", 5, "x"), ("1", "a", 5, "x"), ("1", None, 5, "x")]) == 2
    assert add(connection, [("1", None, 5, "x"), ("1", "a", None, "x"), ("2", "a", 5, "x")]) == 2
    assert add(connection, [("1", "a", 5, "x")], mode="rx") == 1
    assert add(connection, [(None, "a", 5, "y"), ("3", "a", 5, None)]) == 0
    assert count_rows(connection, events.table_of("dx")) == 4
    assert count_rows(connection, "people") == 2
    assert count_rows(connection, "codes") == 2


@pytest.mark.parametrize("table", ["people", "codes"])
def test_two_texts_of_one_hash_are_refused(table, connection):
    add(connection, [("1", "a", 5, "x"), ("2", "a", 5, "y")])
    add(connection, [("1", "a", 5, "x")], mode="rx")
    events.refuse_equal_hashes(connection)
    connection.execute(f"UPDATE {table} SET key = 7")
    with pytest.raises(DataError, match=f"two of the {table} have the same hash"):
        events.refuse_equal_hashes(connection)


def test_the_report_is_in_order_without_zeros_and_logged(connection, caplog):
    with caplog.at_level(logging.INFO, logger=events.__name__):
        for place, number in (("b.csv", 3), ("c.csv", 0), ("a.csv", 2)):
            events.count(connection, place, "rows", number)
    assert events.read_report(connection) == (("b.csv", "rows", 3), ("a.csv", "rows", 2))
    assert "b.csv: rows: 3" in caplog.text
