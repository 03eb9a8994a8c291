"""Waiting in tests: for as long as a busy machine takes, and not for ever."""

import time
from collections.abc import Callable

PATIENCE = 900.0
"""Seconds after which a test gives up waiting. It guards against hanging, and measures nothing: a
test that comes near it is broken."""


def await_that(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up, f"not in {PATIENCE:g} s: {what}"
        time.sleep(0.05)


class Clock:
    """Stands for the module `time` in code that a test does not wait for."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    time = perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds
