"""Run a command, and terminate it and all its descendants when the parent process exits.

Flower's servers start helper processes, and so does Ray. Helpers that start a new session outlive a
killed parent. The parent therefore runs this file as a program (the supervisor), which starts the
command. When the parent exits, the pipe to the supervisor's stdin closes. The supervisor then
terminates the command and its helpers. On Linux, the supervisor adopts orphaned descendants and
kills all its children. On other systems, the supervisor terminates only its own process group.
"""

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
"""Time in seconds between asking a command to exit and killing the command."""


@contextmanager
def supervised(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command under a supervisor, in a new session, until the context ends.

    Yield the supervisor's `Popen` object, created with `options`. The supervisor outlives the
    command and its helpers, and exits with the command's exit code. If a signal ended the command,
    the exit code is 128 plus the signal's number. `communicate` would end the command.
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


def supervise(command: Sequence[str]) -> int:
    """Run a command until it exits, stdin closes or SIGTERM arrives. Then end all its helpers."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER in linux/prctl.h
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for number in (signal.SIGINT, signal.SIGHUP):  # not SIG_IGN, which the command would inherit
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    Thread(target=_await_parents_end, args=(stop,), daemon=True).start()
    Thread(target=_end_when_asked, args=(child, stop), daemon=True).start()
    code = child.wait()
    _end_descendants()
    return code if code >= 0 else 128 - code


def _await_parents_end(stop: Event) -> None:
    os.read(0, 1)  # nobody writes to the pipe, so the call returns when the pipe closes
    stop.set()


def _end_when_asked(child: subprocess.Popen[bytes], stop: Event) -> None:
    stop.wait()
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _end_descendants() -> None:
    if sys.platform != "linux":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        return
    with suppress(ChildProcessError):  # no children, so no descendants
        while True:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)  # no child has been reaped, so no id has been reused
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """Return the ids of this process's children, including adopted orphans."""
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            # The name in brackets may contain any character. The state and the parent follow.
            parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                children.append(int(folder.name))
    return children


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
