"""The exceptions that this package defines and raises.

Error messages never contain a patient's data, so a site may log them. Flower sends an exception's
message to the server, so the site passes only the exception's `code` to Flower.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

CODE_PREFIX = "dpfact:"
"""Prefix of an error code in a text sent by a site."""
_MOST_SHOWN = 80
"""Maximum number of characters that an error quotes from a value, which may be hostile."""
_MOST_HEARD = 300
"""Maximum number of characters kept from a received text."""


class DPFactError(Exception):
    """Base class of the errors that this package raises. The `code` is safe to send to a server."""

    code: ClassVar[str] = "internal"


class DataError(DPFactError, ValueError):
    """Raised when a table, tensor, vocabulary or model cannot be used."""

    code = "data"


class SettingsError(DPFactError, ValueError):
    """Raised when a setting is unknown, of the wrong type, out of range or inconsistent."""

    code = "settings"


class MessageError(DPFactError, ValueError):
    """Raised when a received message does not follow the protocol."""

    code = "message"


class StateError(DPFactError, RuntimeError):
    """Raised when state on disk is missing, damaged or from a different run."""

    code = "state"


class DivergenceError(DPFactError, ArithmeticError):
    """Raised when a solver cannot reduce its objective with any step size."""

    code = "divergence"


class PrivacyRefusedError(DPFactError):
    """Raised when the site's own privacy settings do not allow a release."""

    code = "privacy-refused"


class RoundFailedError(DPFactError, RuntimeError):
    """Raised in place of other errors after a round has read patients' data, to hide the cause."""

    code = "failed"


class LateError(DPFactError):
    """Raised when a site's reply would be sent after the round's deadline."""

    code = "late"


class QuorumError(DPFactError, RuntimeError):
    """Raised when a run cannot continue because too few sites have replied (see `reasons`)."""

    code = "quorum"

    def __init__(self, problem: str, reasons: Iterable[object] = (), advice: str = "") -> None:
        self.problem, self.reasons = problem, tuple(map(str, reasons))
        text = f"{problem}: {'; '.join(self.reasons)}" if self.reasons else problem
        super().__init__(f"{text}. {advice}" if advice else text)


class MissingDependencyError(DPFactError, ImportError):
    """Raised when a call needs an optional dependency that is not installed."""

    code = "dependency"


@contextmanager
def naming(place: object, *others: type[Exception]) -> Iterator[None]:
    """Begin the message of a `DataError` with `place`. Turn the `others` into a `DataError` too."""
    named: tuple[type[Exception], ...] = (DataError, *others)
    try:
        yield
    except MissingDependencyError:
        raise
    except named as error:
        raise DataError(f"{place}: {error}") from None


def code_in(reason: str) -> str:
    """Return the error code in a `reason` that a site sent, or "" if there is no code."""
    return reason.partition(CODE_PREFIX)[2].partition(" ")[0]


def shown(value: object) -> str:
    """Format a value for an error message: its `repr` on one line, cut after 80 characters."""
    if isinstance(value, (str, bytes, list, tuple)):
        value = value[:_MOST_SHOWN]  # no need to format characters that will be cut off
    try:
        text = repr(value)
    except Exception:  # an integer with too many digits, or a class with a broken repr
        text = type(value).__name__
    if not text.isprintable():
        text = ascii(text)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def plural(count: int, what: str) -> str:
    """Format a count and a noun, such as ``1 site`` or ``2,000 sites``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def heard(text: str) -> str:
    """Turn a received text into one short, printable line that is safe for logs and terminals."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_HEARD])
