"""When a reply leaves: at a fixed time after its request came in, if the hospital wants that.

How long a round takes depends on the patients. With `reply-after` every reply, whatever it says,
leaves that many seconds after the request came in. What is not ready by then waits until twice that
time, or four times, and so on, and then says that the round failed: so being late tells one bit,
and one more for each doubling, not a time.
"""

from __future__ import annotations

import time

from dpfact_flower.errors import RoundFailedError


class Hold:
    """Holds one reply.

    Parameters
    ----------
    seconds : float
        From the request to its reply; 0 holds nothing.
    came_in : float, optional
        When the request came in, by `time.monotonic`; by default now.

    Attributes
    ----------
    late : bool
        Whether the reply was not ready in time; known once it was waited for.
    ready : float
        Seconds from the request until the reply was ready: for the site alone.
    """

    def __init__(self, seconds: float, came_in: float | None = None) -> None:
        self._seconds = seconds
        self._came_in = time.monotonic() if came_in is None else came_in
        self._over = seconds <= 0
        self.late = False
        self.ready = 0.0

    def wait(self) -> None:
        """Return when the reply may leave; once it may, at once."""
        if self._over:
            return
        self.ready, due = self._passed(), self._seconds
        while self._passed() > due:
            due *= 2
            self.late = True
        while (left := due - self._passed()) > 0:
            time.sleep(left)
        self._over = True

    def begin_again(self) -> None:
        """As if the request came in now: it had to wait for another's reply to be due."""
        self._came_in = time.monotonic()

    def _passed(self) -> float:
        return time.monotonic() - self._came_in


def overrun() -> RoundFailedError:
    """What a late reply says in place of whatever it was."""
    return RoundFailedError(
        "the reply was not ready when it was due: reply-after is too short for this machine and "
        "data. What was charged is kept, and sent if it is asked again"
    )
