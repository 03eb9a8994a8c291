"""A command that ends with the process that started it, together with all that it started.

Flower's servers start helpers, some in sessions of their own, and Ray starts servers too. When
whoever started them is killed, nobody is left to end them. So a keeper stands in between: this very
file, run as a program. It holds the read end of a pipe whose write end its parent keeps. When the
parent ends, in whatever way, so does the pipe: then the keeper ends what it has started.

On Linux the keeper adopts its descendants' orphans, so that it reaches all of them through its own
children: it ends those until it has none. Nothing is looked for by name or among others' processes.
On other Unixes it ends its process group, which some helpers leave. On Windows there is no keeper.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# As a program it runs without site-packages: nothing but the standard library here.

_STOP_SECONDS = 20
"""What is asked to end has this long before it is killed."""
_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


@contextmanager
def kept(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command under a keeper, in a session of its own; end it with the context.

    Parameters
    ----------
    command : sequence of str
    **options
        Of `subprocess.Popen`, except `stdin`, which is the pipe. Do not `communicate`: that closes
        it. A child that this process forks has it too, so it should not live longer.

    Yields
    ------
    Popen
        The keeper. Its return code is the command's, or 128 and the number of the signal that
        ended it. It returns when nothing is left of the command and what that started.
    """
    if os.name == "posix":
        program = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
        options |= {"stdin": subprocess.PIPE, "start_new_session": True}
    else:
        program = []
    process = subprocess.Popen([*program, *command], **options)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        else:
            process.terminate()
        process.wait()


# --- the keeper itself


def keep(command: Sequence[str]) -> int:
    """Run a command until it ends, or stdin does, or SIGTERM comes; then end what it has left.

    Returns
    -------
    int
        Exit code: the command's, or 128 and the number of the signal that ended it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # It does nothing but wake; what is ignored instead, the command would ignore as well.
        signal.signal(number, lambda *_: None)
    # Held until it has been reaped here: a `Popen` that is let go reaps a child that has ended.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    code = _run(child.pid, signals)
    _end_descendants()
    return code


def _run(child: int, signals: int) -> int:
    """Wait until the child ends; ask it to when the parent has gone or wants it."""
    stdin, kill_at = sys.stdin.fileno(), None
    while (code := _reap(child)) is None:
        if kill_at is None:
            ready = select.select([stdin, signals], [], [])[0]
        else:
            ready = select.select([signals], [], [], 1)[0]
            if time.monotonic() >= kill_at:
                os.kill(child, signal.SIGKILL)
        numbers = os.read(signals, 64) if signals in ready else b""
        if kill_at is None and (stdin in ready or signal.SIGTERM in numbers):
            os.kill(child, signal.SIGTERM)  # it is not reaped yet, so the id is still its own
            kill_at = time.monotonic() + _STOP_SECONDS
    return code


def _reap(child: int) -> int | None:
    """Reap all that have ended; the child's exit code if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code if code is None or code >= 0 else 128 - code


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
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has gone
            # The name stands in brackets and may hold anything; after it come state and parent.
            parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
