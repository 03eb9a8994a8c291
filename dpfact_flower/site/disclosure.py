"""Disclosure of errors: the text goes to the site's own log, and only a code leaves the site."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from dpfact_flower.errors import CODE_PREFIX, DPFactError

disclosure_logger = logging.getLogger(__name__)
_MOST_TEXT = 800
"""Largest number of characters of an error in the log, so that a line stays below 1 kB."""


def log_privately(site: str, error: Exception) -> str:
    """Write an error to the site's own log, and return the text that may leave the site.

    Errors of other packages may quote the data, so only their type and place are logged.
    """
    if isinstance(error, DPFactError):
        text = str(error)
        disclosure_logger.error("site %s: %s: %s", site, error.code, text[:_MOST_TEXT])
    else:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        place = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
        disclosure_logger.error("site %s: unexpected %s at %s", site, type(error).__name__, place)
    return public_reason(error)


PUBLIC_CODES = ("data", "failed", "internal", "late", "message", "privacy-refused", "settings",
                "state")  # fmt: skip
"""Codes that `public_reason` may return for a failed round."""


def public_reason(error: BaseException) -> str:
    """Return the only text about a failed round that may leave the site: the error's code."""
    code = error.code if isinstance(error, DPFactError) else "internal"
    return f"{CODE_PREFIX}{code} (details are in the site's own log)"
