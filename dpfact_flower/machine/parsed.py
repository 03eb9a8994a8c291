"""JSON from a file that may hold anything: what it says, or a ValueError."""

from __future__ import annotations

import json
from typing import Any


def from_json(text: str | bytes) -> Any:
    """What a JSON text says.

    Raises
    ------
    ValueError
        If it is not JSON, not text, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:  # which is no ValueError: a thousand brackets are enough
        raise ValueError("nested too deeply") from None
