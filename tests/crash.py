"""Failures at a call that touches the disk: the process dies, or the disk is full."""

import hashlib
import os
import resource
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pytest

from dpfact_flower.privacy.ledger import Ledger

WRITES = (
    (os, "open"), (os, "mkdir"), (os, "fsync"), (os, "replace"), (os, "link"), (os, "unlink"),
    (os, "posix_fallocate"), (tempfile, "mkstemp"), (Ledger, "charge"),
)  # fmt: skip
Writes = Sequence[tuple[object, str]]


@contextmanager
def failing_at(
    step: int | None, fail: Callable[[], object], writes: Writes = WRITES
) -> Iterator[None]:
    """Make calls that touch the disk fail, after the first `step` calls have succeeded.

    Each SQLite statement counts as one call. With None, nothing fails.
    """
    calls, connect = count(), sqlite3.connect

    def reached(*_: object) -> None:
        if step is not None and next(calls) >= step:
            fail()

    def failing(whole: Callable) -> Callable:
        def call(*arguments: object, **named: object) -> object:
            reached()
            return whole(*arguments, **named)

        return call

    def traced(*arguments: object, **named: object) -> sqlite3.Connection:
        connection = connect(*arguments, **named)
        connection.set_trace_callback(reached)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in writes:
            patch.setattr(owner, name, failing(getattr(owner, name)))
        patch.setattr(sqlite3, "connect", traced)
        yield


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Limit all files to `size` bytes, including SQLite's, with the system's own error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Killed(BaseException):
    """The process has ended here."""


def killed(*_: object, **__: object) -> None:
    """End a process by what nothing catches."""
    raise Killed


def die() -> None:
    """End this process as SIGKILL does: nothing is closed, rolled back or written."""
    os.kill(os.getpid(), signal.SIGKILL)


def answered_in_a_child(answer: Callable[[], bytes], step: int) -> tuple[bool, str]:
    """Answer in a child process that dies at a step.

    Return whether the child survived to the end, and the SHA-256 of its output before it died,
    which is empty without any output.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(900)
            with failing_at(step, die):
                sent = answer()
            os.write(writer, hashlib.sha256(sent).hexdigest().encode())
        finally:
            os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return status == 0, pipe.read()
