"""Connections to the ledgers of simulated sites, between two of their messages.

Opening a ledger takes about as long as charging. A real site's process ends with its message; one
that plays many sites would open every one of their ledgers in every round.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
from pathlib import Path
from threading import Lock

from dpfact_flower.machine.files import Version, version

_MOST = 16


class _Idle:
    """Open connections not now in use, each known by its file as the connection left it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._connections: dict[Version, sqlite3.Connection] = {}  # the oldest first

    def take(self, path: Path) -> sqlite3.Connection | None:
        """A connection to the file as it is now; None if somebody else has written it since."""
        with self._lock:
            return self._connections.pop(version(path), None)

    def give(self, path: Path, connection: sqlite3.Connection) -> None:
        """Keep a connection that is in no transaction; where there are many, the oldest goes."""
        try:
            found = version(path)
        except OSError:
            connection.close()
            return
        with self._lock:
            surplus = [self._connections.pop(found, connection)]
            self._connections[found] = connection
            if len(self._connections) > _MOST:
                surplus.append(self._connections.pop(next(iter(self._connections))))
        for other in surplus:
            if other is not connection:
                other.close()

    def close(self) -> None:
        """Close them all."""
        self.stop()
        self.go_on()

    def stop(self) -> None:
        """Close them all, and let nobody keep or take one until `go_on`."""
        self._lock.acquire()
        while self._connections:
            self._connections.popitem()[1].close()

    def go_on(self) -> None:
        """End what `stop` began."""
        self._lock.release()


idle = _Idle()
atexit.register(idle.close)
if hasattr(os, "register_at_fork"):
    # SQLite's connections must not be used in a fork, nor may a fork find the lock held forever.
    os.register_at_fork(before=idle.stop, after_in_parent=idle.go_on, after_in_child=idle.go_on)
