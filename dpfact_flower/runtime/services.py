"""Run Flower's SuperLink or SuperNode as a service (`dpfact superlink`, `dpfact site connect`).

A SuperLink exits when its helper process ends, and a SuperNode when one of its threads fails, so
that systemd restarts the service.
"""

import argparse
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from dpfact_flower.errors import StateError
from dpfact_flower.machine.flower import refuse_unknown_version
from dpfact_flower.machine.logs import use_flower_handler
from dpfact_flower.runtime.superlink import quiet_environment

HOST, PORT = "127.0.0.1", 9094
"""Default address at which a SuperNode listens for its executor."""
_BUSY_MILLISECONDS = 25_000
"""Longest wait for a busy database. Flower's clients wait for 30 s before they ask again."""
_PART_SECONDS = 60.0
"""Longest wait for a part of a reply from the executor, which is on this machine."""
_logger = logging.getLogger(__name__)


def run_superlink(options: Sequence[str]) -> None:
    """Run a SuperLink with `flower-superlink`'s options until the SuperLink or its helper exits."""
    refuse_unknown_version()
    refuse_damaged(options)
    os.environ.update(quiet_environment())  # before Flower is imported
    extend_database_timeout()
    from flwr.superlink.cli.flower_superlink import (  # noqa: PLC0415
        SuperLinkLifespan,
        flower_superlink,
    )

    use_flower_handler()
    sys.argv = ["flower-superlink", *options]
    _end_with_helper(SuperLinkLifespan)
    flower_superlink()


def run_supernode(options: Sequence[str]) -> NoReturn:
    """Run a SuperNode with `flower-supernode`'s options until the SuperNode stops or fails."""
    refuse_unknown_version()
    os.environ.update(quiet_environment())  # before Flower is imported
    from flwr.supernode import start_client_internal as node  # noqa: PLC0415
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-supernode", *options]
    threading.excepthook = lambda failed: _end(  # Flower goes on without the failed thread
        f"a part of the SuperNode has failed ({failed.exc_value!r})"
    )
    patched = vars(node)  # Flower has no public way to change these two functions
    push = patched["push_object_contents_from_iterable"]
    patched["_pull_and_store_message"] = _including_unsent(node._pull_and_store_message)
    patched[push.__name__] = lambda parts, **options: push(_with_time_limit(parts), **options)
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


def refuse_damaged(options: Sequence[str]) -> None:
    """Raise a `StateError` if the SQLite database that ``--database`` names is damaged."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--database", type=Path)
    path: Path | None = parser.parse_known_args(options)[0].database
    if path is None or not path.is_file():
        return
    try:
        with closing(sqlite3.connect(path)) as database:
            (damage,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # busy, or not readable: Flower reports this itself
        return
    except sqlite3.DatabaseError as error:
        damage = str(error)
    if damage != "ok":
        raise StateError(
            f"{path}: the SuperLink's database is damaged ({damage}): restore a copy, or move the "
            "file away and register every hospital again"
        )


def extend_database_timeout() -> None:
    """Extend a SuperLink's wait for a busy database. Call this before importing the SuperLink.

    By default, Flower waits five seconds. If two runs on a slow machine keep the database busy for
    more than five seconds, the SuperLink's helper and all ServerApps exit.
    """
    from flwr.supercore import constant  # noqa: PLC0415

    pragmas = {**dict(constant.SQLITE_PRAGMAS), "busy_timeout": str(_BUSY_MILLISECONDS)}
    constant.SQLITE_PRAGMAS = tuple(pragmas.items())  # type: ignore[assignment]


def _end_with_helper(lifespan: Any) -> None:
    """Change Flower's class `lifespan`, so that a SuperLink ends if its helper ends first.

    The helper, a SuperExec, starts the ServerApps. Flower does not restart a killed helper, and
    without the helper all runs stay `pending`.
    """
    start, stop, is_stopping = lifespan.startup, lifespan.shutdown, threading.Event()

    def await_helper(helper: subprocess.Popen[bytes]) -> None:
        helper.wait()
        if not is_stopping.is_set():
            _end("the SuperLink's process that starts runs has ended")

    def startup(link: Any) -> None:
        start(link)
        if helper := link.superexec_process:
            threading.Thread(target=await_helper, args=(helper,), daemon=True).start()

    def shutdown(link: Any) -> None:
        is_stopping.set()  # a SuperLink that stops also stops its helper
        stop(link)

    lifespan.startup, lifespan.shutdown = startup, shutdown


def _including_unsent(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap `pull`, so that the SuperNode sends replies even if no message has arrived.

    Flower's SuperNode sends replies only after `pull` has returned the run ID of a new message.
    """

    def pulled(*, state: Any, **others: Any) -> int | None:
        run = pull(state=state, **others)
        if run is None:
            for message in list(state.msg_store.values()):
                if message.message.metadata.reply_to_message_id and not message.is_retrieved:
                    return int(message.message.metadata.run_id)
        return run

    return pulled


def _with_time_limit(parts: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a reply, and terminate the SuperNode if a part does not arrive in time.

    Without this limit, the SuperNode waits forever if the executor is killed while sending a reply.
    """
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
    _logger.error("%s: this process ends so that it can be restarted", why)
    os.kill(os.getpid(), signal.SIGTERM)  # as in Flower: a SuperNode signs off first
