"""Whether the centre can be reached from here, is who it says it is, and has the same time."""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

_SECONDS = 10.0
_SOON = 30 * 86_400
_CLOCK_SECONDS = 3.0
"""Flower ends a SuperNode that is 5 s ahead; the centre's own answer has whole seconds."""


def server_faults(address: str, certificates: Path) -> list[str]:
    """What is wrong with the way to a SuperLink, in words that say what to do.

    It asks for a page that needs no key, over TLS, and looks at nothing but the certificate and the
    time in the answer's head. The SuperNode has both arguments: `--superlink`, HOST:PORT, and
    `--root-certificates`.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return [f"--superlink {address} is not HOST:PORT"]
    try:
        trusted = ssl.create_default_context(cafile=certificates)
    except (OSError, ssl.SSLError) as error:
        return [f"{certificates} cannot be read ({error}): ask the centre for its ca.crt"]
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=_SECONDS,
                                             context=trusted)  # fmt: skip
    try:
        connection.connect()
        peer = connection.sock.getpeercert() or {}
        connection.request("GET", "/health")
        sent = connection.getresponse().getheader("Date")
    except ssl.SSLCertVerificationError as error:
        return [
            f"{address} is not the centre for {certificates}: {error.verify_message}. Ask it for "
            "its ca.crt and the name in its certificate; somebody may sit in between"
        ]
    except (OSError, http.client.HTTPException) as error:
        return [
            f"{address} does not answer ({error}): its name, the firewall, or the centre is down"
        ]
    finally:
        connection.close()
    ends = [
        str(certificate["notAfter"])
        for certificate in (peer, *trusted.get_ca_certs())
        if "notAfter" in certificate
    ]
    return [*_clock_faults(sent), *_expiry_faults(address, ends)]


def _clock_faults(sent: str | None) -> list[str]:
    if not sent:
        return []
    ahead = time.time() - parsedate_to_datetime(sent).timestamp()
    if abs(ahead) <= _CLOCK_SECONDS:
        return []
    side = "ahead of" if ahead > 0 else "behind"
    return [f"this clock is {abs(ahead):.0f} s {side} the centre's: use NTP"]


def _expiry_faults(address: str, ends: list[str]) -> list[str]:
    return [
        f"a certificate of {address} runs out on {end}: the centre has to sign another"
        for end in dict.fromkeys(ends)
        if ssl.cert_time_to_seconds(end) - time.time() < _SOON
    ]
