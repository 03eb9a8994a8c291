"""Our log lines through Flower's handler, where Flower runs us; libraries configure nothing."""

from __future__ import annotations

import logging

from flwr.common.logger import console_handler


def use_flower_handler() -> None:
    """Show this package's log at INFO in Flower's own format. Called by the two apps alone."""
    logger = logging.getLogger("dpfact_flower")
    logger.setLevel(logging.INFO)
    if console_handler not in logger.handlers:
        logger.addHandler(console_handler)
