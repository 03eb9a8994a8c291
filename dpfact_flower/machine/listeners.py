"""Who listens on a port of this machine, as Linux shows it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LISTENS = "0A"
_TABLES = Path("/proc/net/tcp"), Path("/proc/net/tcp6")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Listener(NamedTuple):
    """A socket that takes connections.

    Attributes
    ----------
    uid : int
        Of the user who made it.
    inode : int
        Its own number: another socket in its place has another one.
    """

    uid: int
    inode: int


def listeners(host: str, port: int) -> list[Listener] | None:
    """Sockets that a connection to a port of this machine may reach.

    Parameters
    ----------
    host : str
        Name or number of the loopback address.
    port : int

    Returns
    -------
    list of Listener or None
        None where that cannot be seen: of another machine or container, and not on Linux. Empty
        where nobody listens at one of the host's addresses: whoever takes that is reached, too.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        tables = [table.read_text().splitlines()[1:] for table in _TABLES if table.exists()]
    except OSError:
        return None
    addresses = {ipaddress.ip_address(str(each[4][0])) for each in found}
    if not tables or not all(address.is_loopback for address in addresses):
        return None
    listening = [each for table in tables for each in _listening(table, port)]
    reached = [_reached(address, listening) for address in addresses]
    return [each for found in reached for each in found] if all(reached) else []


def _listening(table: list[str], port: int) -> Iterator[tuple[_Address, Listener]]:
    for line in table:
        _, local, _, state, _, _, _, uid, _, inode, *_ = line.split()
        address, _, number = local.partition(":")
        if state == _LISTENS and int(number, 16) == port:
            yield _address(address), Listener(int(uid), int(inode))


def _address(text: str) -> _Address:
    """Words of 32 bits in the order of the machine, which is little-endian wherever this runs."""
    words = bytes.fromhex(text)
    packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    found = ipaddress.ip_address(packed)
    return getattr(found, "ipv4_mapped", None) or found


def _reached(address: _Address, listening: list[tuple[_Address, Listener]]) -> list[Listener]:
    """Linux hands a connection to who listens most closely; `::` may take the older kind, too."""
    older = [ipaddress.ip_address("0.0.0.0")] if address.version == 4 else []
    for wanted in (address, *older, ipaddress.ip_address("::")):
        if reached := [each for place, each in listening if place == wanted]:
            return reached
    return []
