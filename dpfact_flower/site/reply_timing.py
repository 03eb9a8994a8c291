"""When a reply leaves, and whether it is still in time for its round.

The time of a round depends on the patients. With `reply-after`, every reply leaves that many
seconds after the request arrived. A reply that is not ready by then waits until twice that time, or
four times, and so on, and then says that the round failed. So a late reply reveals one bit, and one
more for each doubling, but not the time itself.

A round's deadline is the time to live of its message. A charge after the deadline would be useless,
because nobody collects the reply. So the deadline is checked before the patients are read, and
again right before the charge is committed.
"""

from __future__ import annotations

import math
import time

from dpfact_flower.errors import LateError, RoundFailedError

_SENDING_SHARE = 1 / 20
_SENDING_MOST = 30.0
"""Share of a message's time to live, and most seconds, that are kept for sending the reply."""


class ReplyDelay:
    """Delays one reply until it is due.

    Parameters
    ----------
    seconds : float
        From the request to its reply; 0 means no delay.
    came_in : float, optional
        When the request arrived, by `time.monotonic`; by default now.
    time_left : float
        Seconds from then until the reply must leave, see `seconds_left`; by default no limit.

    Attributes
    ----------
    late : bool
        Whether the reply was not ready in time; known after `wait`.
    ready : float
        Seconds from the request until the reply was ready; for the site alone.
    """

    def __init__(
        self, seconds: float, came_in: float | None = None, time_left: float = math.inf
    ) -> None:
        self._seconds = seconds
        self._came_in = time.monotonic() if came_in is None else came_in
        self._deadline = self._came_in + time_left
        self._over = seconds <= 0
        self.late = False
        self.ready = 0.0

    def wait(self) -> None:
        """Wait until the reply is due; later calls return at once."""
        if self._over:
            return
        self.ready = self._passed()
        due = self._due()
        self.late = due > self._seconds
        while (remaining := due - self._passed()) > 0:
            time.sleep(remaining)
        self._over = True

    def check_in_time(self) -> None:
        """Refuse a round whose deadline comes before a reply that is ready now may leave."""
        leaves = self._came_in + (self._due() if self._seconds > 0 else self._passed())
        if leaves > self._deadline:
            delayed = f", held until reply-after = {self._seconds:g} s" if self._seconds > 0 else ""
            raise LateError(
                f"a reply{delayed} would leave {leaves - self._deadline:.1f} s too late for its "
                "round: nothing is charged. If this happens often, the centre's round-timeout is "
                "too short for this site"
            )

    def restart(self) -> None:
        """Measure from now, because the request waited for the reply to another one."""
        self._came_in = time.monotonic()

    def _due(self) -> float:
        """Seconds from the request until a reply that is ready now may leave."""
        due, passed = self._seconds, self._passed()
        while passed > due:
            due *= 2
        return due

    def _passed(self) -> float:
        return time.monotonic() - self._came_in


def seconds_left(created_at: float, time_to_live: float) -> float:
    """Seconds from now until the reply to a message that has just arrived must leave.

    The result is below 0 if it is too late. It never exceeds the time to live, even if this clock
    is behind the sender's.

    Parameters
    ----------
    created_at : float
        When the message was made, in seconds since 1970, by its sender's clock.
    time_to_live : float
        Seconds for which message and reply are valid.
    """
    return sending_from(time_to_live) - max(time.time() - created_at, 0.0)


def sending_from(time_to_live: float) -> float:
    """Seconds of a message's time to live before the part that is for sending the reply."""
    return time_to_live - min(_SENDING_MOST, _SENDING_SHARE * time_to_live)


def overrun() -> RoundFailedError:
    """The error that replaces every late reply."""
    return RoundFailedError(
        "the reply was not ready when it was due: reply-after is too short for this machine and "
        "data. A charged release is kept, and sent if the server requests it again"
    )
