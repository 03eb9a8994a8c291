"""Log lines: with time and level, with colours only in a terminal, or as JSON."""

import json
import logging
import re
import subprocess
import sys

import pytest
from flwr.common import logger as logger_module
from flwr.common.logger import LOGGER_NAME, ConsoleHandler

from dpfact_flower.errors import QuorumError
from dpfact_flower.machine import logs


@pytest.fixture
def line(monkeypatch):
    """The format of a line after the handler was set up for a terminal or a file."""

    def made(*, terminal: bool, form: str = "") -> str:
        handler = ConsoleHandler()
        monkeypatch.setattr(logger_module, "console_handler", handler)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
        monkeypatch.setenv(logs.FORMAT, form)
        logger = logging.getLogger("dpfact_flower")
        try:
            logs.use_flower_handler()
            record = logging.LogRecord(
                "dpfact_flower.site", logging.WARNING, "x.py", 1, "late by %d s", (3,), None
            )
            return handler.format(record)
        finally:
            logger.removeHandler(handler)

    return made


def test_a_file_has_times_and_no_colours(line):
    text = line(terminal=False)
    assert re.fullmatch(r"WARNING \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}:  +late by 3 s", text)
    assert "\033" in line(terminal=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_json_is_one_object_a_line(line, terminal):
    found = json.loads(line(terminal=terminal, form="json"))
    assert found.pop("time").endswith("+00:00")
    assert found.pop("message") == "late by 3 s"
    assert found == {"level": "WARNING", "logger": "dpfact_flower.site"}


@pytest.mark.nightly
@pytest.mark.process
def test_no_public_name_brings_a_handler_with_it():
    """A library does not change the log of the program that imports it."""
    code = """if True:
        import logging
        from dpfact_flower import *
        ours = logging.getLogger("dpfact_flower")
        print(ours.handlers, ours.level)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "0"]


def test_a_level_that_was_set_stays(line, caplog):
    logger = logging.getLogger("dpfact_flower")
    for level, expected in ((logging.WARNING, logging.WARNING), (logging.NOTSET, logging.INFO)):
        caplog.set_level(level, logger.name)
        line(terminal=False)
        assert logger.level == expected


def test_our_error_is_one_line_where_flower_logs_it_and_others_are_whole(caplog, monkeypatch):
    """Otherwise, the ServerApp ends with twenty lines before the one that says what to do."""
    logs.use_flower_handler()
    theirs = logging.getLogger(LOGGER_NAME)
    monkeypatch.setattr(theirs, "propagate", True)
    for error in (QuorumError("nothing was charged: mend site-2"), ValueError("x")):
        theirs.error("%s raised an exception", "ServerApp", exc_info=error)
    ours, other = caplog.records
    assert ours.getMessage() == "ServerApp raised an exception: nothing was charged: mend site-2"
    assert ours.exc_info is None
    assert other.getMessage() == "ServerApp raised an exception"
    assert other.exc_info is not None
