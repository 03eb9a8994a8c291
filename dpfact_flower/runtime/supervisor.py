"""A command that ends with the process that started it, together with all that it started.

Flower's servers start helpers, some in sessions of their own, and Ray starts servers too. When the
process that started them is killed, nobody is left to end them. So a supervisor stands in between:
this very file, run as a program. It reads from a pipe whose other end its parent keeps. When the
parent ends, in whatever way, so does the pipe, and the supervisor ends what it has started.

On Linux the supervisor adopts its descendants' orphans, so it reaches all of them through its own
children, and kills those until it has none. Elsewhere it ends its process group, which some helpers
leave.
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

# As a program it runs without site-packages: nothing but the standard library here.

_STOP_SECONDS = 20
"""A command that is asked to end is killed after this."""
_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


@contextmanager
def supervised(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command under a supervisor, in a session of its own; end it with the context.

    Yields the supervisor's Popen, made with `options`. It returns when nothing is left of the
    command and its helpers, with the command's exit code, or 128 and the number of the signal that
    ended it. Its stdin is the pipe: do not `communicate`, which closes it. A child that this
    process forks has the pipe too, so it should not live longer.
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
    """Run a command until it ends, or stdin does, or SIGTERM comes; then end what it has left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for number in (signal.SIGINT, signal.SIGHUP):
        # Handlers that do nothing: the command would inherit that a signal is ignored.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    Thread(target=_await_parents_end, args=(stop,), daemon=True).start()
    Thread(target=_end_when_asked, args=(child, stop), daemon=True).start()
    code = child.wait()
    _end_descendants()
    return code if code >= 0 else 128 - code


def _await_parents_end(stop: Event) -> None:
    os.read(0, 1)  # nothing is ever written: it returns at the end
    stop.set()


def _end_when_asked(child: subprocess.Popen[bytes], stop: Event) -> None:
    stop.wait()
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _end_descendants() -> None:
    """End what the command has left behind."""
    if sys.platform != "linux":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        return
    with suppress(ChildProcessError):  # without children there are no descendants
        while True:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)  # none has been reaped: the id is still its own
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """Ids of this process's children, with the orphans that it has adopted."""
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has gone
            # The name stands in brackets and may hold anything; after it come state and parent.
            parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                children.append(int(folder.name))
    return children


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
