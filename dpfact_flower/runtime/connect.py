"""A hospital's SuperNode that asks again, and ends where it has given up: it is started again then.

Flower's SuperNode is several threads. Where its way to the SuperLink fails otherwise than it
expects, as with a centre that hung for half a minute, the thread that asks for messages ends, or
the one that says that the hospital is there. Another, which serves the executor, keeps the process
running: nobody starts it again, and the hospital stays offline.

Nor does it expect what a SuperLink says (500) whose database is locked for longer than five
seconds, by another run that ends, say. Then it gives up likewise; or, where it was fetching a
message's parts, or sending a reply's, it forgets that message without a word. So it is asked again
here, as a busy one, but not for ever: a database that was set back may fail at one message each
time.

And it waits without end for the parts of a reply whose head it was given. They never come where an
executor was killed in between. Nor does it send a reply before it was given another message. Of a
run that was killed it makes one itself, late, and every reply after that waits for a message.
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

from dpfact_flower.machine import flower
from dpfact_flower.machine.quiet import quietly

if TYPE_CHECKING:
    import httpx

_PULL = "_pull_and_store_message"
_PUSH = "push_object_contents_from_iterable"
_GAVE_UP = 1
"""Exit code, also where Flower ends with 0: it ended unasked."""
_FAILING_SECONDS = 120.0
"""For so long a SuperLink that fails at one thing each time is asked for it again."""
_PART_SECONDS = 60.0
"""A part of a reply comes from this machine; without one for so long, the executor has gone."""
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
    flower.refuse_other_flower()
    os.environ.update(quietly(os.environ))  # before Flower is imported
    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-supernode", *options]
    threading.excepthook = _end_with
    client, node = flower.FleetHttpClient, flower.start_client_internal
    client._send = _busy_for_failing(client._send)  # type: ignore[method-assign]
    setattr(node, _PULL, _or_send(getattr(node, _PULL)))
    push = getattr(node, _PUSH)
    setattr(node, _PUSH, lambda parts, **options: push(_while_they_come(parts), **options))
    code: int | str | None = _GAVE_UP
    try:
        flower.flower_supernode()  # which returns where it has given up
        _logger.error("the SuperNode has given up its way to the SuperLink (its reason is above)")
    except SystemExit as end:
        code = end.code
    except Exception:
        _logger.exception("the SuperNode has failed")
    logging.shutdown()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _busy_for_failing(send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
    """What sends a request, and has a SuperLink that fails inside be asked again as a busy one.

    Where it fails at one thing all the time, the SuperNode ends.
    """
    since: dict[str, float] = {}

    def sent(client: Any, context: Any) -> httpx.Response:
        response = send(client, context)
        what = context.request.url.path
        if response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR:
            since.pop(what, None)
            return response
        if time.monotonic() - since.setdefault(what, time.monotonic()) >= _FAILING_SECONDS:
            since.pop(what)  # or it would be ended twice, and could not say that it leaves
            _end(f"the SuperLink has failed inside (500) at {what} for {_FAILING_SECONDS:g} s")
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return response

    return sent


def _or_send(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """What asks for a message, and has replies sent that wait, where there is none."""

    def pulled(*, state: Any, **others: Any) -> int | None:
        run = pull(state=state, **others)
        if run is None:
            for kept in list(state.msg_store.values()):
                if kept.message.metadata.reply_to_message_id and not kept.is_retrieved:
                    return int(kept.message.metadata.run_id)
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
    """End the whole SuperNode where one of its threads has failed."""
    _end(f"a part of the SuperNode has failed ({failed.exc_value!r})")


def _end(why: str) -> None:
    _logger.error("%s, so it ends, to be started again", why)
    os.kill(os.getpid(), signal.SIGTERM)  # Flower's way: the SuperLink is told that it leaves
