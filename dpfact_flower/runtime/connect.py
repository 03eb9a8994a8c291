"""A hospital's SuperNode that asks again, and ends where it has given up: it is started again then.

Flower 1.41's SuperNode is several threads. Where its way to the SuperLink fails otherwise than it
expects, as with a centre that hung for half a minute, the thread that asks for messages ends, or
the one that says that the hospital is there. Another, which serves the executor, keeps the process
running: nobody starts it again, and the hospital stays offline.

Nor does it expect what a SuperLink says (500) whose database is locked for longer than five
seconds, by another run that ends, say. Then it gives up likewise; or, where it was fetching a
message's parts, or sending a reply's, it forgets that message without a word.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

from dpfact_flower.machine.known import refuse_other_flower
from dpfact_flower.machine.quiet import quietly

if TYPE_CHECKING:
    import httpx

_GAVE_UP = 1
"""Exit code, also where Flower ends with 0: it ended unasked."""
_logger = logging.getLogger(__name__)


def connect(options: Sequence[str]) -> NoReturn:
    """Be a SuperNode until it is ended or gives up; then end, with all of its threads.

    Parameters
    ----------
    options : sequence of str
        Of `flower-supernode`.

    Raises
    ------
    MissingDependencyError
        If another Flower is installed.
    """
    refuse_other_flower()
    os.environ.update(quietly(os.environ))  # before Flower is imported
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415
    from flwr.supernode.fleet_http_client import FleetHttpClient  # noqa: PLC0415

    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-supernode", *options]
    threading.excepthook = _end_with
    FleetHttpClient._send = _busy_for_failing(FleetHttpClient._send)  # type: ignore[method-assign]
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


def _busy_for_failing(send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
    """What sends a request, and has a SuperLink that fails inside be asked again as a busy one."""

    def sent(*arguments: Any) -> httpx.Response:
        response = send(*arguments)
        if response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:
            response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return response

    return sent


def _end_with(failed: threading.ExceptHookArgs) -> None:
    """End the whole SuperNode where one of its threads has failed."""
    _logger.error("a part of the SuperNode has failed, so it ends: %r", failed.exc_value)
    os.kill(os.getpid(), signal.SIGTERM)  # Flower's way: the SuperLink is told that it leaves
