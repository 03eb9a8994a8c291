"""A hospital's SuperNode that ends where it has given up: whoever started it starts it again.

Flower 1.41's SuperNode is several threads. Where its way to the SuperLink fails otherwise than it
expects (a centre that hung for half a minute, or that fails inside, 500), the thread that asks for
messages ends, or the one that says that the hospital is there. Another, which serves the executor,
keeps the process running: nobody starts it again, and the hospital stays offline.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from dpfact_flower.machine.quiet import quietly

_GAVE_UP = 1
"""Exit code, also where Flower ends with 0: it ended unasked."""
_logger = logging.getLogger(__name__)


def connect(options: Sequence[str]) -> NoReturn:
    """Be a SuperNode until it is ended or gives up; then end, with all of its threads.

    Parameters
    ----------
    options : sequence of str
        Of `flower-supernode`.
    """
    os.environ.update(quietly(os.environ))  # before Flower is imported
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415

    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-supernode", *options]
    threading.excepthook = _end_with
    code: int | str | None = _GAVE_UP
    try:
        flower_supernode()  # which returns where it has given up
        _logger.error("the SuperNode has given up its way to the SuperLink (its reason is above)")
    except SystemExit as end:
        code = end.code
    except Exception:
        _logger.exception("the SuperNode has failed")
    logging.shutdown()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _end_with(failed: threading.ExceptHookArgs) -> None:
    """End the whole SuperNode where one of its threads has failed."""
    _logger.error("a part of the SuperNode has failed, so it ends: %r", failed.exc_value)
    os.kill(os.getpid(), signal.SIGTERM)  # Flower's way: the SuperLink is told that it leaves
