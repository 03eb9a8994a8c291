"""Python imports this as it starts, where it is on the path: notes who else is asked for."""

import os
import sys

_NOTES = os.environ.get("DPFACT_TEST_NOTES", "")
_HERE = ("localhost", "127.", "::1")


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in {"socket.connect", "socket.sendto", "socket.sendmsg"}:
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a name of a Unix socket
    else:
        return
    if host and not str(host).startswith(_HERE):
        with open(_NOTES, "a", encoding="utf-8") as file:
            file.write(f"{event} {host}\n")


if _NOTES:
    sys.addaudithook(_note)
