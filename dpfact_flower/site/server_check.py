"""Checks of a site's connection to the server: address, certificate and clock."""

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

_SECONDS = 10.0
_SOON = 30 * 86_400
_CLOCK_SECONDS = 3.0
"""Accepted difference between the clocks, in seconds. Flower refuses a clock that is 5 s ahead."""


def server_faults(address: str, certificates: Path) -> list[str]:
    """Return the faults in the connection to a SuperLink, each with its remedy.

    Both arguments are options of the SuperNode: `--superlink` (HOST:PORT) and
    `--root-certificates`. The check requests a public page to get the certificate and time.
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
            f"{address} is not the centre for {certificates}: {error.verify_message}. Ask the "
            "centre for its ca.crt and its name; somebody may intercept the connection"
        ]
    except (OSError, http.client.HTTPException) as error:
        return [f"{address} does not answer ({error}): check the address, firewall and centre"]
    finally:
        connection.close()
    certificates_seen = (peer, *trusted.get_ca_certs())
    ends = [str(each["notAfter"]) for each in certificates_seen if "notAfter" in each]
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
        f"a certificate of {address} expires on {end}: ask the centre for a new one"
        for end in dict.fromkeys(ends)
        if ssl.cert_time_to_seconds(end) - time.time() < _SOON
    ]
