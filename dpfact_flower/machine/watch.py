"""How far long work has got, told to whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[str, float], None]
"""Called with the name of a piece of work and the share of it that is done, from 0 to 1."""


def unwatched(name: str, share: float) -> None:
    """Nobody looks."""
