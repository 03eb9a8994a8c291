"""`dpfact superlink`: the centre's SuperLink, which ends when its helper has ended.

If the SuperExec, the helper that starts ServerApps, is killed, Flower does not restart it, and all
runs stay `pending`. This SuperLink ends in that case, so that systemd restarts both.

Flower's SuperLink waits only five seconds for its own database, and two runs on a slow machine can
need more. After that, it answers with status 500: the SuperExec ends with all ServerApps, and a
SuperNode gives up or forgets its message. This SuperLink waits nearly as long as its clients do.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.flower import refuse_unknown_version
from dpfact_flower.runtime.connection import quiet_environment

_HELPER = "flower-superexec"[:15]
"""Name of the helper's process, in the short form of Linux."""
_BUSY_MILLISECONDS = 25_000
"""Time limit for a busy database. Flower's clients wait 30 s before they ask again."""
_logger = logging.getLogger(__name__)


def superlink_main(options: Sequence[str]) -> None:
    """Run a SuperLink with options of `flower-superlink` until it is stopped or its helper ends."""
    refuse_unknown_version()
    refuse_damaged(options)
    os.environ.update(quiet_environment())  # before Flower is imported
    wait_for_the_database()
    from flwr.superlink.cli import flower_superlink  # noqa: PLC0415

    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-superlink", *options]
    signal.signal(signal.SIGCHLD, lambda *_: _end_without_helper())
    flower_superlink()


def refuse_damaged(options: Sequence[str]) -> None:
    """Refuse a damaged SQLite database in the file of the option ``--database``."""
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


def wait_for_the_database() -> None:
    """Make the SuperLink, which is imported later, wait for other writers to its database."""
    from flwr.supercore import constant  # noqa: PLC0415

    pragmas = {**dict(constant.SQLITE_PRAGMAS), "busy_timeout": str(_BUSY_MILLISECONDS)}
    constant.SQLITE_PRAGMAS = tuple(pragmas.items())  # type: ignore[assignment]


def _end_without_helper() -> None:
    if _helper_has_ended():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _logger.error("the SuperLink ends, because its helper, which starts runs, has ended")
        os.kill(os.getpid(), signal.SIGTERM)


def _helper_has_ended() -> bool:
    """Return whether the ended child is the helper, because libraries start other children."""
    with suppress(OSError):  # another part of the process has reaped the child
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended:
            return Path(f"/proc/{ended.si_pid}/comm").read_text().strip() == _HELPER
    return False
