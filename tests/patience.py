"""Waiting in tests: long enough for a busy machine, but not for ever."""

import time
from collections.abc import Callable

PATIENCE = 900.0
"""Seconds after which a test gives up waiting. A test that nearly takes this long is broken."""


def await_that(holds: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up, f"not in {PATIENCE:g} s: {what}"
        time.sleep(0.05)


class Clock:
    """A replacement for the module `time`, so that tests do not wait."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    time = perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds
