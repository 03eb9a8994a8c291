"""The package's log lines, and reports of a task's progress.

In a process that Flower runs, log lines go through Flower's handler. As a library, this package
configures no handlers.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from dpfact_flower.errors import DPFactError

OUR_LOGGER = "dpfact_flower"
FORMAT = "DPFACT_LOG"
"""Environment variable for the log's format. The value ``json`` gives one JSON object per line."""

ProgressCallback = Callable[[str, float], None]
"""Function that receives the name of a task and the fraction that is done, from 0 to 1."""


def no_progress(name: str, share: float) -> None:
    """Ignore a report of progress."""


def use_flower_handler() -> None:
    """Show this package's log in Flower's format, with level INFO unless another is set.

    Only apps, commands and whole runs may call this function. An import must never call it. In a
    file or a journal, each line has a time and no colours.
    """
    from flwr.common.logger import LOGGER_NAME, console_handler  # noqa: PLC0415

    logger = logging.getLogger(OUR_LOGGER)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logging.getLogger(LOGGER_NAME).addFilter(in_one_line)
    if console_handler not in logger.handlers:
        logger.addHandler(console_handler)
    if os.environ.get(FORMAT) == "json":
        console_handler.format = as_json  # type: ignore[method-assign]
    elif not sys.stderr.isatty():
        console_handler.timestamps, console_handler.colored = True, False


def in_one_line(record: logging.LogRecord) -> bool:
    """In Flower's log, show this package's own errors on one line without a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DPFactError):
        record.msg, record.args = f"{record.getMessage()}: {error}", ()
        record.exc_info = record.exc_text = None
    return True


def as_json(record: logging.LogRecord) -> str:
    """Return a log line as JSON for programs: time (UTC), level, logger and text."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {"time": time, "level": record.levelname, "logger": record.name,
            "message": record.getMessage().strip()}  # fmt: skip
    return json.dumps(line)


@contextmanager
def flower_quiet(quiet: bool = True) -> Iterator[None]:
    """Hide Flower's and this package's log lines below WARNING during a run in this process."""
    from flwr.common.logger import LOGGER_NAME  # noqa: PLC0415

    loggers = [logging.getLogger(name) for name in (LOGGER_NAME, OUR_LOGGER)]
    before = [logger.level for logger in loggers]
    for logger in loggers if quiet else ():
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
