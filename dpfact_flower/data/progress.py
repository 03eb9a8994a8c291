"""How far DuckDB has got with a query, told to whoever watches the reading."""

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
"""Seconds between two looks; what takes less is not told of."""


@contextmanager
def watched(watch: ProgressCallback) -> Iterator[None]:
    """Tell `watch` of all `report_progress` inside the block."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


@contextmanager
def report_progress(connection: Connection, name: str) -> Iterator[None]:
    """Tell of the queries inside the block, as one piece of work: the share of the longest known.

    DuckDB knows the share of a query for most, not for all; it never falls here, though a block may
    hold several queries.
    """
    watch, done = _watch.get(), Event()
    if watch is no_progress:
        yield
        return

    # DuckDB counts only if it may show, which it then must not, on standard output.
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
