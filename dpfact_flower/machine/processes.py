"""Find the machine's processes and their listening sockets in Linux's /proc."""

import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dpfact_flower.errors import SettingsError, shown

_INTERPRETED = 3
"""Number of words at the start of a command line among which the command's name is searched."""
_LISTENS = "0A"
_TABLES = Path("/proc/net/tcp"), Path("/proc/net/tcp6")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Process:
    """A process. `environment` and `folder` are None if they cannot be read."""

    pid: int
    uid: int
    words: Sequence[str]
    environment: Mapping[str, str] | None
    folder: Path | None

    def runs(self, *names: str) -> bool:
        """Return whether the process runs one of the commands in `names`."""
        return any(Path(word).name in names for word in self.words[:_INTERPRETED])

    def option(self, name: str) -> str | None:
        """Return the value of a command-line option, or None if the option is missing."""
        for number, word in enumerate(self.words):
            if word == name:
                return self.words[number + 1] if number + 1 < len(self.words) else None
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None

    def path(self, name: str) -> Path | None:
        """Return an option's value as a path, resolved relative to the process's folder."""
        text = self.option(name)
        if text is None:
            return None
        return (self.folder or Path()).joinpath(Path(text).expanduser()).resolve()


def processes() -> list[Process]:
    """Return all processes on this machine that have a command line."""
    running = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            words = (folder / "cmdline").read_text(errors="replace").split("\0")[:-1]
            if words:
                place = _readable(folder)
                running.append(Process(int(folder.name), folder.stat().st_uid, words, *place))
    return running


def _readable(folder: Path) -> tuple[dict[str, str] | None, Path | None]:
    try:
        lines = (folder / "environ").read_text(errors="replace").split("\0")
        place = (folder / "cwd").readlink()
    except PermissionError:
        return None, None
    return {key: value for key, _, value in (line.partition("=") for line in lines)}, place


class Listener(NamedTuple):
    """A listening socket."""

    uid: int
    inode: int


def listeners(host: str, port: int) -> list[Listener] | None:
    """Return the listening sockets that can receive a connection to `host` and `port`.

    Return None if `host` is unknown or has a non-loopback address, or if there is no /proc/net/tcp.
    Return an empty list if any address of `host` has no listener. Another process could take that
    address, so the listeners on the other addresses prove nothing.
    """
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        tables = [table.read_text().splitlines()[1:] for table in _TABLES if table.exists()]
    except OSError:
        return None
    except UnicodeError:
        raise SettingsError(f"{shown(host)} is not the name or address of a host") from None
    addresses = {ipaddress.ip_address(str(entry[4][0])) for entry in resolved}
    if not tables or not all(address.is_loopback for address in addresses):
        return None
    listening = [entry for table in tables for entry in _listening(table, port)]
    reached = [_reached(address, listening) for address in addresses]
    return [listener for found in reached for listener in found] if all(reached) else []


def _listening(table: list[str], port: int) -> Iterator[tuple[_Address, Listener]]:
    for line in table:
        _, local, _, state, _, _, _, uid, _, inode, *_ = line.split()
        address, _, number = local.partition(":")
        if state == _LISTENS and int(number, 16) == port:
            yield _address(address), Listener(int(uid), int(inode))


def _address(text: str) -> _Address:
    """Parse an address in the format of /proc/net/tcp: 32-bit words, little-endian."""
    words = bytes.fromhex(text)
    packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    address = ipaddress.ip_address(packed)
    return getattr(address, "ipv4_mapped", None) or address


def _reached(address: _Address, listening: list[tuple[_Address, Listener]]) -> list[Listener]:
    """Return the sockets that receive connections to `address`. The most specific address wins."""
    any_ipv4 = [ipaddress.ip_address("0.0.0.0")] if address.version == 4 else []
    for local in (address, *any_ipv4, ipaddress.ip_address("::")):
        if reached := [listener for place, listener in listening if place == local]:
            return reached
    return []
