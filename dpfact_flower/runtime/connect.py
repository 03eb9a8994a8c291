"""`dpfact site connect`: a hospital's SuperNode that exits when it gives up, to be restarted.

The command works around four faults of Flower's SuperNode:

- When its connection fails unexpectedly, one thread ends, but the other threads continue.
- If a SuperLink answers with status 500 because its database is locked, the SuperNode gives up, or
  forgets the message that it was fetching or sending. This command retries for a limited time,
  because a restored database may fail at the same message each time.
- It waits for ever for the remaining parts of a reply if the executor was killed.
- It sends a reply only after it has received another message.
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

_FAILING_SECONDS = 120.0
"""Time limit for retries of a request that the SuperLink answers with status 500."""
_PART_SECONDS = 60.0
"""Time limit for a part of a reply, which comes from this machine."""
_logger = logging.getLogger(__name__)


def connect(options: Sequence[str]) -> NoReturn:
    """Run a SuperNode with options of `flower-supernode` until it is stopped or gives up."""
    refuse_unknown_version()
    os.environ.update(QUIET)  # before Flower is imported
    from flwr.supernode import start_client_internal as node  # noqa: PLC0415
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415
    from flwr.supernode.fleet_http_client import FleetHttpClient as Client  # noqa: PLC0415

    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-supernode", *options]
    threading.excepthook = lambda failed: _end(
        f"a part of the SuperNode has failed ({failed.exc_value!r})"
    )
    names, push = vars(node), vars(node)["push_object_contents_from_iterable"]
    names["_pull_and_store_message"] = _or_send(node._pull_and_store_message)
    names[push.__name__] = lambda parts, **options: push(_while_they_come(parts), **options)
    Client._send = _busy_for_failing(Client._send)  # type: ignore[method-assign]
    code: int | str | None = 1
    try:
        flower_supernode()  # returns, with Flower's exit code 0, when the SuperNode gives up
        _logger.error("the SuperNode no longer tries to reach the SuperLink (the reason is above)")
    except SystemExit as end:
        code = end.code
    except Exception:
        _logger.exception("the SuperNode has failed")
    logging.shutdown()
    os._exit(code if isinstance(code, int) else int(code is not None))  # ends all threads


def _busy_for_failing(send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
    """Wrap `send` to return busy (503) in place of failed (500), so that Flower retries."""
    since: dict[str, float] = {}

    def sent(client: Any, context: Any) -> httpx.Response:
        response = send(client, context)
        path = context.request.url.path
        if response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR:
            since.pop(path, None)
            return response
        if time.monotonic() - since.setdefault(path, time.monotonic()) >= _FAILING_SECONDS:
            since.pop(path)  # a second signal would prevent the SuperNode's sign-off
            _end(f"the SuperLink has failed inside (500) at {path} for {_FAILING_SECONDS:g} s")
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return response

    return sent


def _or_send(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap `pull`, which asks for a message. If none comes, return the run of a waiting reply."""

    def pulled(*, state: Any, **others: Any) -> int | None:
        run = pull(state=state, **others)
        if run is None:
            for message in list(state.msg_store.values()):
                if message.message.metadata.reply_to_message_id and not message.is_retrieved:
                    return int(message.message.metadata.run_id)
        return run

    return pulled


def _while_they_come(parts: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a reply, and end the SuperNode if a part is late."""
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


def _end(why: str) -> None:
    _logger.error("%s: the SuperNode ends, so that it is started again", why)
    os.kill(os.getpid(), signal.SIGTERM)  # ends as Flower does: the SuperNode signs off
