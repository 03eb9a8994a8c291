"""`dpfact site connect`: a hospital's SuperNode that ends where it has given up.

Whoever started it, systemd for example, starts it again. Flower's SuperNode fails in four ways that
this one mends:

- It is several threads. When its way to the SuperLink fails unexpectedly, after a centre hung for
  half a minute for example, one thread ends and the others keep the process running, offline.
- A SuperLink whose database is locked for long answers 500. Flower's SuperNode then gives up, or
  forgets the message whose parts it was fetching or sending. Here it asks again, as it asks a busy
  SuperLink, but not for ever: a database that was set back may fail at one message each time.
- It waits without end for the parts of a reply. They never come if the executor was killed.
- It sends a reply only after it was given another message.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

from dpfact_flower.machine.flower import QUIET, refuse_unknown_version

if TYPE_CHECKING:
    import httpx

_PULL = "_pull_and_store_message"
_PUSH = "push_object_contents_from_iterable"
_GAVE_UP = 1
"""Exit code, also where Flower ends with 0: it ended unasked."""
_FAILING_SECONDS = 120.0
"""A SuperLink that fails at one thing is asked for that thing again for so long."""
_PART_SECONDS = 60.0
"""A part of a reply comes from this machine; without one for so long, the executor has gone."""
_logger = logging.getLogger(__name__)


def connect(options: Sequence[str]) -> NoReturn:
    """Be a SuperNode, with options of `flower-supernode`, until it is ended or gives up."""
    refuse_unknown_version()
    os.environ.update(QUIET)  # before Flower is imported
    from flwr.supernode import start_client_internal as node  # noqa: PLC0415
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415
    from flwr.supernode.fleet_http_client import FleetHttpClient as Client  # noqa: PLC0415

    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-supernode", *options]
    threading.excepthook = _end_with
    Client._send = _busy_for_failing(Client._send)  # type: ignore[method-assign]
    setattr(node, _PULL, _or_send(getattr(node, _PULL)))
    push = getattr(node, _PUSH)
    setattr(node, _PUSH, lambda parts, **options: push(_while_they_come(parts), **options))
    code: int | str | None = _GAVE_UP
    try:
        flower_supernode()  # which returns where it has given up
        _logger.error("the SuperNode no longer tries to reach the SuperLink (the reason is above)")
    except SystemExit as end:
        code = end.code
    except Exception:
        _logger.exception("the SuperNode has failed")
    logging.shutdown()
    os._exit(code if isinstance(code, int) else int(code is not None))  # with all threads


def _busy_for_failing(send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
    """`send`, which says busy (503) where the SuperLink fails (500), so that Flower asks again."""
    since: dict[str, float] = {}

    def sent(client: Any, context: Any) -> httpx.Response:
        response = send(client, context)
        path = context.request.url.path
        if response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR:
            since.pop(path, None)
            return response
        if time.monotonic() - since.setdefault(path, time.monotonic()) >= _FAILING_SECONDS:
            since.pop(path)  # or it would be ended twice, and could not say that it leaves
            _end(f"the SuperLink has failed inside (500) at {path} for {_FAILING_SECONDS:g} s")
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return response

    return sent


def _or_send(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """`pull`, which asks for a message; without one, it has the replies sent that wait."""

    def pulled(*, state: Any, **others: Any) -> int | None:
        run = pull(state=state, **others)
        if run is None:
            for message in list(state.msg_store.values()):
                if message.message.metadata.reply_to_message_id and not message.is_retrieved:
                    return int(message.message.metadata.run_id)
        return run

    return pulled


def _while_they_come(parts: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Parts of a reply; where one does not come in time, the SuperNode ends."""
    rest = iter(parts)
    why = f"no part of a reply has come from the executor for {_PART_SECONDS:g} s"
    while True:
        waiting = threading.Timer(_PART_SECONDS, _end, (why,))
        waiting.daemon = True
        waiting.start()
        try:
            part = next(rest)
        except StopIteration:
            return
        finally:
            waiting.cancel()
        yield part


def _end_with(failed: threading.ExceptHookArgs) -> None:
    _end(f"a part of the SuperNode has failed ({failed.exc_value!r})")


def _end(why: str) -> None:
    _logger.error("%s: the SuperNode ends, so that it is started again", why)
    os.kill(os.getpid(), signal.SIGTERM)  # Flower's way: the SuperLink is told that it leaves
