"""Report the progress of DuckDB's queries to a callback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from typing import TYPE_CHECKING

from dpfact_flower.machine.logs import ProgressCallback, no_progress

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

_watch: ContextVar[ProgressCallback] = ContextVar("watch", default=no_progress)
_EVERY = 0.25
"""Seconds between two reports. Shorter queries are not reported."""


@contextmanager
def watched(watch: ProgressCallback) -> Iterator[None]:
    """Send the progress of every `report_progress` inside the block to `watch`."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


@contextmanager
def report_progress(connection: Connection, name: str) -> Iterator[None]:
    """Report the queries inside the block as one task named `name`.

    The reported share is the largest that DuckDB has given for any query of the block, so it never
    falls. DuckDB gives no share for some queries.
    """
    watch, done = _watch.get(), Event()
    if watch is no_progress:
        yield
        return

    # DuckDB measures progress only with the progress bar enabled. Printing stays disabled.
    connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")

    def look() -> None:
        share = 0.0
        while not done.wait(_EVERY):
            share = max(share, connection.query_progress() / 100)
            watch(name, share)
        if share:
            watch(name, 1.0)

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
