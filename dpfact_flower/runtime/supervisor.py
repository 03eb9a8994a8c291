"""Runs a command that ends together with its parent process, including all descendants.

Flower's servers start helpers, some in sessions of their own, and Ray starts servers too. If their
parent is killed, the helpers keep running. A supervisor between parent and command prevents this;
it is this file, run as a program. The supervisor reads from a pipe that its parent holds open. When
the parent ends for any reason, the pipe closes, and the supervisor ends the command and its
helpers.

On Linux the supervisor adopts its descendants' orphans, so it reaches every descendant through its
own children. It kills children until none are left. Elsewhere it ends its process group, which some
helpers leave.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

# As a program, this file runs without site-packages: import only the standard library.

_STOP_SECONDS = 20
"""Time after which a command that was asked to end is killed."""
_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


@contextmanager
def supervised(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command under a supervisor, in a session of its own; end it with the context.

    Yields the supervisor's Popen, made with `options`. The supervisor ends when the command and its
    helpers have ended. Its exit code is the command's, or 128 plus the number of the signal that
    ended the command. Its stdin is the pipe, which `communicate` would close. Children that this
    process forks inherit the pipe, so they should not outlive this process.
    """
    program = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
    options |= {"stdin": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen([*program, *command], **options)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


# --- the supervisor itself


def supervise(command: Sequence[str]) -> int:
    """Run a command until it, stdin or SIGTERM ends it; then end its helpers."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for number in (signal.SIGINT, signal.SIGHUP):
        # Handlers that do nothing, because the command would inherit ignored signals.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    Thread(target=_await_parents_end, args=(stop,), daemon=True).start()
    Thread(target=_end_when_asked, args=(child, stop), daemon=True).start()
    code = child.wait()
    _end_descendants()
    return code if code >= 0 else 128 - code


def _await_parents_end(stop: Event) -> None:
    os.read(0, 1)  # no bytes are ever written: it returns when the pipe closes
    stop.set()


def _end_when_asked(child: subprocess.Popen[bytes], stop: Event) -> None:
    stop.wait()
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _end_descendants() -> None:
    """End the command's remaining helpers."""
    if sys.platform != "linux":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        return
    with suppress(ChildProcessError):  # no children, so no descendants
        while True:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)  # no child has been reaped, so its id is not reused
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """Ids of this process's children, adopted orphans included."""
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            # The name is in brackets and may hold any character; state and parent follow.
            parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                children.append(int(folder.name))
    return children


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
