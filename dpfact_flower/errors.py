"""Every error this package raises on purpose.

A message names the field, the value and what would be right. It never holds a value that belongs
to a patient, so it may be logged at the site. What may *leave* a site is the `code` alone: Flower
passes an exception's text to the server verbatim, so the client replies with the code and
keeps the text (see `dpfact_flower.client`).
"""

from __future__ import annotations

from typing import ClassVar

CODE_PREFIX = "dpfact:"
"""What the code of an error follows in the text that leaves a site."""
_MOST_SHOWN = 80
"""Characters of a value that an error quotes: a stranger may have chosen it."""
_MOST_HEARD = 300
"""Characters of a text that came from the other side."""


class DPFactError(Exception):
    """Base of all errors raised on purpose; `code` is safe to send to a server."""

    code: ClassVar[str] = "internal"


class DataError(DPFactError, ValueError):
    """A table, tensor, vocabulary or model that cannot be used as it is."""

    code = "data"


class SettingsError(DPFactError, ValueError):
    """A setting that is unknown, of the wrong type, out of range or incompatible with another."""

    code = "settings"


class MessageError(DPFactError, ValueError):
    """A message from the other side that does not follow the protocol."""

    code = "message"


class StateError(DPFactError, RuntimeError):
    """State on disk that is missing, damaged or from another run."""

    code = "state"


class DivergenceError(DPFactError, ArithmeticError):
    """A solver that could not find a step size at which its objective falls."""

    code = "divergence"


class PrivacyRefusedError(DPFactError, PermissionError):
    """A release that the site's own privacy settings do not allow."""

    code = "privacy-refused"


class RoundFailedError(DPFactError, RuntimeError):
    """A round that failed after patients' data was touched: one code, whatever the reason."""

    code = "failed"


class LateError(DPFactError, TimeoutError):
    """A round that is over, or will be before its reply could leave."""

    code = "late"


class QuorumError(DPFactError, RuntimeError):
    """Too few sites answered for a run to continue."""

    code = "quorum"


class MissingDependencyError(DPFactError, ImportError):
    """An optional dependency that this call needs is not installed."""

    code = "dependency"


def code_in(reason: str) -> str:
    """The code that a site has given as its reason; "" where it is somebody else's text."""
    return reason.partition(CODE_PREFIX)[2].partition(" ")[0]


def shown(value: object) -> str:
    """A value for an error message: as in code, on one line, cut off after 80 characters."""
    if isinstance(value, (str, bytes, list, tuple)):
        value = value[:_MOST_SHOWN]  # what is cut off need not be written first
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, or somebody else's class
        text = type(value).__name__
    if not text.isprintable():
        text = ascii(text)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def heard(text: str) -> str:
    """A text from the other side, fit for a log and a terminal: short, printable, on one line."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_HEARD])
