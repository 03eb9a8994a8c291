"""Our log lines through Flower's handler, where Flower runs us; libraries configure nothing."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

from flwr.common.logger import console_handler

FORMAT = "DPFACT_LOG"
"""Environment variable: ``json`` for one object a line."""


def use_flower_handler() -> None:
    """Show this package's log at INFO in Flower's own format. Called by the two apps alone.

    In a file or a journal every line has its time and no colours; with ``DPFACT_LOG=json`` it is
    one JSON object.
    """
    logger = logging.getLogger("dpfact_flower")
    logger.setLevel(logging.INFO)
    if console_handler not in logger.handlers:
        logger.addHandler(console_handler)
    if os.environ.get(FORMAT) == "json":
        console_handler.format = as_json  # type: ignore[method-assign]
    elif not sys.stderr.isatty():
        console_handler.timestamps, console_handler.colored = True, False


def as_json(record: logging.LogRecord) -> str:
    """A line of a log for programs: time (UTC), level, logger and text."""
    made = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {"time": made, "level": record.levelname, "logger": record.name,
            "message": record.getMessage().strip()}  # fmt: skip
    return json.dumps(line)
