"""The centre's SuperLink that ends where its helper has: it is started again then, with a new one.

Flower's SuperLink starts one process, a SuperExec, that starts the runs' ServerApps, and does
not look after it. Where that is killed, for want of memory, say, every run stays `pending`.

Nor does it wait long for its own database: after five seconds it answers 500, on which a SuperExec
ends with all ServerApps, and a SuperNode gives up or forgets what it was about. With two runs on a
slow machine that happens; so it waits here for nearly as long as those who ask wait for it.

It starts its helper, and that the runs, by names, which systemd's PATH does not have. And where the
database is damaged it ends without saying so.
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
from dpfact_flower.machine import flower
from dpfact_flower.machine.quiet import quietly

_HELPER = "flower-superexec"[:15]
"""As Linux has the names of processes."""
_BUSY_MILLISECONDS = 25_000
"""Flower's clients give an answer 30 s, and ask again then."""
_logger = logging.getLogger(__name__)


def centre(options: Sequence[str]) -> None:
    """Be a SuperLink until it is ended, or its helper ends.

    Parameters
    ----------
    options : sequence of str
        Of `flower-superlink`.

    Raises
    ------
    MissingDependencyError
        If another Flower is installed.
    StateError
        If its database is damaged.
    """
    flower.refuse_other_flower()
    refuse_damaged(options)
    os.environ.update(quietly(os.environ))  # before Flower is imported
    beside = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join(filter(None, (beside, os.environ.get("PATH"))))
    wait_for_the_database()
    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-superlink", *options]
    signal.signal(signal.SIGCHLD, lambda *_: _end_without_helper())
    flower.flower_superlink()


def refuse_damaged(options: Sequence[str]) -> None:
    """Refuse a database that SQLite finds damaged; the options name it.

    Raises
    ------
    StateError
        Naming the file and the way out.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--database", type=Path)
    path: Path | None = parser.parse_known_args(options)[0].database
    if path is None or not path.is_file():
        return
    try:
        with closing(sqlite3.connect(path)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # busy, or closed to this user: Flower says so itself
        return
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise StateError(
            f"{path}: the SuperLink's database is damaged ({found}): restore a copy, or move the "
            "file away and register every hospital again"
        )


def wait_for_the_database() -> None:
    """Have the SuperLink wait for who writes to its database; before its parts are imported."""
    constant = flower.constant
    own = {**dict(constant.SQLITE_PRAGMAS), "busy_timeout": str(_BUSY_MILLISECONDS)}
    constant.SQLITE_PRAGMAS = tuple(own.items())  # type: ignore[assignment]


def _end_without_helper() -> None:
    if _helper_has_ended():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _logger.error("the SuperLink's helper, which starts the runs, has ended, so it ends too")
        os.kill(os.getpid(), signal.SIGTERM)


def _helper_has_ended() -> bool:
    """Not of one that was stopped, or goes on, nor of what libraries ask the system."""
    with suppress(OSError):  # it has been seen to elsewhere
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended:
            return Path(f"/proc/{ended.si_pid}/comm").read_text().strip() == _HELPER
    return False
