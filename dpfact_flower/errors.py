"""The errors that this package raises on purpose.

An error's text never contains a value that belongs to a patient, so the site may log it. Flower
passes the text of an exception to the server verbatim, so only the `code` may leave a site.
"""

from typing import ClassVar

CODE_PREFIX = "dpfact:"
"""Prefix of an error code in a text that leaves a site."""
_MOST_SHOWN = 80
"""Maximum number of characters that an error quotes from a value, which may be hostile."""
_MOST_HEARD = 300
"""Maximum number of characters to use from a text that the other side has sent."""


class DPFactError(Exception):
    """Base class of all errors raised on purpose. The `code` is safe to send to a server."""

    code: ClassVar[str] = "internal"


class DataError(DPFactError, ValueError):
    """Error for a table, tensor, vocabulary or model that cannot be used."""

    code = "data"


class SettingsError(DPFactError, ValueError):
    """Error for a setting that is unknown, of the wrong type, out of range or inconsistent."""

    code = "settings"


class MessageError(DPFactError, ValueError):
    """Error for a received message that does not follow the protocol."""

    code = "message"


class StateError(DPFactError, RuntimeError):
    """Error for state on disk that is missing, damaged or from another run."""

    code = "state"


class DivergenceError(DPFactError, ArithmeticError):
    """Error for a solver that cannot reduce its objective with any step size."""

    code = "divergence"


class PrivacyRefusedError(DPFactError, PermissionError):
    """Error for a release that the site's own privacy settings do not allow."""

    code = "privacy-refused"


class RoundFailedError(DPFactError, RuntimeError):
    """Error for a round that failed after patients' data was read. All causes share one code."""

    code = "failed"


class LateError(DPFactError, TimeoutError):
    """Error for a round that has ended, or will end before the site may send its reply."""

    code = "late"


class QuorumError(DPFactError, RuntimeError):
    """Error for a run that cannot continue because too few sites have answered."""

    code = "quorum"


class MissingDependencyError(DPFactError, ImportError):
    """Error for a call that needs an optional dependency that is not installed."""

    code = "dependency"


def code_in(reason: str) -> str:
    """Return the error code that a site's message contains, or "" if it contains none."""
    return reason.partition(CODE_PREFIX)[2].partition(" ")[0]


def shown(value: object) -> str:
    """Format a value for an error message: its `repr` on one line, cut after 80 characters."""
    if isinstance(value, (str, bytes, list, tuple)):
        value = value[:_MOST_SHOWN]  # no need to format characters that will be cut off
    try:
        text = repr(value)
    except Exception:  # an integer with too many digits, or a foreign class
        text = type(value).__name__
    if not text.isprintable():
        text = ascii(text)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def heard(text: str) -> str:
    """Shorten a received text to one printable line, so that logs and terminals can show it."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_HEARD])
