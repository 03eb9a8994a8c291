"""A sample of what `python -m tests.fuzz` tries, and that it notices what it is there for."""

import logging

import pytest

from dpfact_flower.errors import DataError
from tests.fuzz.files import damage_files
from tests.fuzz.requests import ask_anything
from tests.fuzz.watch import COUNT, Watch


def test_damaged_files_raise_our_own_errors_alone(tmp_path):
    with Watch() as watch:
        damage_files(tmp_path, 260, 20, watch)
    assert watch.problems == []
    assert sum(times for what, times in watch.seen.items() if "read" not in what) > 200


def test_hostile_requests_are_answered_or_refused_by_a_code(tmp_path):
    with Watch() as watch:
        ask_anything(tmp_path, 300, 20, watch)
    assert watch.problems == []
    assert watch.seen["request: answered"] > 5
    assert watch.seen["request: message"] > 100


def shouting(text):
    return lambda: logging.getLogger("dpfact_flower.site").info(text)


def failing(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (failing(KeyError("x")), "KeyError at"),
        (failing(MemoryError()), "MemoryError at"),
        (failing(DataError(f"bad count {COUNT}")), "a canary"),
        (failing(DataError("x" * 2000)), "an error of 2000 characters"),
        (shouting("patient CANARY-3"), "a canary"),
        (shouting("x" * 1100), "a line of 1100 characters"),
        (shouting("one\ntwo"), "a log line that is two"),
        (shouting("site north: unexpected ValueError at x.py:1"), "unexpected"),
    ],
)
def test_the_watch_notices(action, says):
    with Watch() as watch:
        watch.read("thing, 1", action)
    assert len(watch.problems) == 1
    assert says in watch.problems[0]


def test_the_watch_notices_an_error_that_does_not_name_its_file():
    with Watch() as watch:
        watch.read("thing, 1", failing(DataError("damaged")), names="/x")
        watch.read("thing, 2", failing(DataError("/x: damaged")), names="/x")
    assert len(watch.problems) == 1


def test_the_watch_has_nothing_against_an_honest_error():
    with Watch() as watch:
        watch.read("thing, 1", failing(DataError("x: damaged")))
        watch.read("thing, 2", shouting("round 3: fine"))
    assert watch.problems == []
    assert watch.seen == {"thing: data": 1, "thing: read": 1}
