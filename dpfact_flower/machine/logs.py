"""Configure the package's log, and define how tasks report progress.

In Flower's processes, this package logs through Flower's handler. Elsewhere, no handler is added.
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
"""Environment variable for the log's format. The value ``json`` makes each line a JSON object."""

ProgressCallback = Callable[[str, float], None]
"""Function that receives a task's name and the completed fraction, from 0 to 1."""


def no_progress(name: str, share: float) -> None:
    """Ignore a progress report."""


def use_flower_handler() -> None:
    """Send this package's log to Flower's handler, at level INFO unless another level is set.

    Call this function where a program starts, not in modules that other code imports. If standard
    error is not a terminal, log lines have a time stamp but no colours.
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
    """Put this package's own errors on one line in Flower's log, without a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, DPFactError):
        record.msg, record.args = f"{record.getMessage()}: {error}", ()
        record.exc_info = record.exc_text = None
    return True


def as_json(record: logging.LogRecord) -> str:
    """Return a log line as JSON with its time (UTC), level, logger and text."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {"time": time, "level": record.levelname, "logger": record.name,
            "message": record.getMessage().strip()}  # fmt: skip
    return json.dumps(line)


@contextmanager
def flower_quiet(quiet: bool = True) -> Iterator[None]:
    """If `quiet` is true, hide Flower's and this package's log lines below level WARNING."""
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
