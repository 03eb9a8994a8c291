"""Our log lines through Flower's handler, where Flower runs us; libraries configure nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.common.logger import LOGGER_NAME as FLOWER_LOGGER_NAME
from flwr.common.logger import console_handler

OUR_LOGGER = "dpfact_flower"


def use_flower_handler() -> None:
    """Show this package's log at INFO in Flower's own format. Called by the two apps alone."""
    logger = logging.getLogger(OUR_LOGGER)
    logger.setLevel(logging.INFO)
    if console_handler not in logger.handlers:
        logger.addHandler(console_handler)


@contextmanager
def flower_quiet(quiet: bool = True) -> Iterator[None]:
    """Keep the log of a run in this process, Flower's and ours, but for warnings, from the screen.

    Flower's lines about metrics are empty: what is measured stays at the sites.
    """
    loggers = [logging.getLogger(name) for name in (FLOWER_LOGGER_NAME, OUR_LOGGER)]
    before = [logger.level for logger in loggers]
    for logger in loggers if quiet else ():
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
