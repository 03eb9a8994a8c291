"""What Flower's log of a run says, line by line: how far it is, and what is worth showing."""

from __future__ import annotations

import re
from collections.abc import Callable

from dpfact_flower.machine.watch import Watch
from dpfact_flower.runtime.serve import MEASURING_LINE

_ROUND = re.compile(r"\[ROUND (\d+)/(\d+)\]")
_WORTH_SHOWING = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
_NOISE = ("Since flwr 1.", "Manually terminating ClientAppActor")
"""Flower's warnings about its own defaults and actors: there is nothing to do about them."""
_KEPT = 200


class Listener:
    """Reads the log of a run in place of a person.

    Parameters
    ----------
    watch : callable
        Told of the rounds and of the measuring after them.
    show : callable
        Given each line that is a warning or worse.
    """

    def __init__(self, watch: Watch, show: Callable[[str], None]) -> None:
        self._watch, self._show = watch, show
        self._last: list[str] = []

    def __call__(self, line: str) -> None:
        """Take the next line."""
        self._last = [*self._last[1 - _KEPT :], line]
        if found := _ROUND.search(line):
            number, rounds = map(int, found.groups())
            self._watch("rounds", (number - 1) / rounds)
        elif MEASURING_LINE in line:
            self._watch("rounds", 1.0)
            self._watch("measuring", 0.0)
        elif _WORTH_SHOWING.search(line) and not any(noise in line for noise in _NOISE):
            self._show(line.rstrip())

    def show_all(self) -> None:
        """Show the last lines whatever they say: the run has failed."""
        for line in self._last:
            self._show(line.rstrip())
