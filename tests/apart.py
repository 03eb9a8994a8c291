"""A machine with nothing but loopback, on which other users can run the tested code.

Linux namespaces, which need root, isolate a thread and the processes it starts. Requests to any
address but loopback have no route, and the kernel counts them for all these processes, whatever
language they were written in.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NEW_NETWORK, NEW_MOUNTS = 0x40000000, 0x00020000  # CLONE_NEWNET, CLONE_NEWNS of linux/sched.h
_OWN_PATHS = 0x00000200  # CLONE_FS
_SET_FLAGS, _UP = 0x8914, 0x1  # SIOCSIFFLAGS and IFF_UP
_THREAD = Path("/proc/thread-self")
_CODE = (Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[1])


@contextmanager
def apart() -> Iterator[Callable[[], int] | None]:
    """Leave the network, except for loopback, until the context ends.

    Yield a function that returns how often another address was requested, or None if the network
    could not be left.
    """
    if not _THREAD.is_dir() or os.geteuid() != 0:
        yield None
        return
    libc = ctypes.CDLL(None)
    with (
        open(_THREAD / "ns" / "net", "rb") as network,
        open(_THREAD / "ns" / "mnt", "rb") as mounts,
    ):
        if libc.unshare(NEW_NETWORK | NEW_MOUNTS) != 0:
            yield None
            return
        try:
            with socket.socket() as any_socket:
                fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
            _open_the_way()
            yield _asked_elsewhere
        finally:
            assert libc.setns(network.fileno(), NEW_NETWORK) == 0
            # Threads started since then share the root folder: a thread that does may not go back.
            assert libc.unshare(_OWN_PATHS) == 0
            assert libc.setns(mounts.fileno(), NEW_MOUNTS) == 0


def _asked_elsewhere() -> int:
    """Return the number of connections and packets without a route since this network began."""
    names, values = (_THREAD / "net" / "snmp").read_text().splitlines()[:2]
    four = dict(zip(names.split(), values.split(), strict=True))["OutNoRoutes"]
    lines = (_THREAD / "net" / "snmp6").read_text().splitlines()
    six = dict(line.split() for line in lines)["Ip6OutNoRoutes"]
    return int(four) + int(six)


def _open_the_way() -> None:
    """Give other users access to Python and the tested code if these are in a folder of root.

    A folder that contains only these replaces root's folder. Outside, nothing changes.
    """
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for closed in {folder for code in _CODE for folder in code.parents if not _is_open(folder)}:
        inside = [code for code in _CODE if closed in code.parents]
        with tempfile.TemporaryDirectory() as name:
            for number, code in enumerate(inside):
                (Path(name) / str(number)).mkdir()
                _mount("--bind", code, Path(name) / str(number))
            _mount("-ttmpfs", "tmpfs", closed)
            closed.chmod(0o755)
            for number, code in enumerate(inside):
                code.mkdir(parents=True, exist_ok=True)
                _mount("--bind", Path(name) / str(number), code)
                subprocess.run(["umount", Path(name) / str(number)], check=True)


def _is_open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)
