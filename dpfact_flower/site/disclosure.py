"""Ensure that a reply reveals only its time of sending, and either a release or an error code.

The duration of a round depends on patients' data. If `reply-after` is set, every reply is due
`reply-after` seconds after the request arrived. Replies are packed when due, because the time for
packing depends only on the values that are sent. If a reply is not ready when due, the site keeps
doubling the reply's delay until the reply is ready. Such a late reply reports only that the round
failed, and its time reveals only the number of doublings.

The time to live of the server's message sets the round's deadline. Privacy budget charged after the
deadline would be wasted, because the server no longer collects replies. The site therefore checks
the deadline before reading patients' data, and again right before charging the privacy budget.
"""

import logging
import math
import time
import traceback
from pathlib import Path

from dpfact_flower.errors import CODE_PREFIX, DPFactError, LateError

disclosure_logger = logging.getLogger(__name__)
_MOST_TEXT = 800
"""Maximum length of an error's text in the log, so that each log line stays below 1 kB."""
_SENDING_SHARE, _SENDING_MOST = 1 / 20, 30.0
"""Time reserved for sending a reply: a share of the time to live, but at most 30 seconds."""


def log_privately(site: str, error: Exception) -> str:
    """Write an error to the site's own log, and return the text that may leave the site.

    Another package's error may quote patients' data, so only the error's type and place are logged.
    """
    if isinstance(error, DPFactError):
        disclosure_logger.error("site %s: %s: %s", site, error.code, str(error)[:_MOST_TEXT])
    else:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        place = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
        disclosure_logger.error("site %s: unexpected %s at %s", site, type(error).__name__, place)
    return public_reason(error)


def public_reason(error: BaseException) -> str:
    """Return a message with the error's code. No other text about the error may leave the site."""
    code = error.code if isinstance(error, DPFactError) else "internal"
    return f"{CODE_PREFIX}{code} (details are in the site's own log)"


class ReplyDelay:
    """A timer that holds a reply until `seconds` seconds after the request arrived (0: no delay).

    The request arrived at `came_in` (a `time.monotonic` value). The reply must leave at most
    `time_left` seconds after `came_in`. `wait` sets `late` to true if the reply was not ready when
    due. `wait` also sets `ready`, the number of seconds until the reply was ready. The value of
    `ready` must not leave the site.
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
        """Wait until the reply is due. Later calls return immediately."""
        if self._over:
            return
        self.ready = self._passed()
        due = self._due()
        self.late = due > self._seconds
        while (remaining := due - self._passed()) > 0:
            time.sleep(remaining)
        self._over = True

    def check_in_time(self) -> None:
        """Refuse the round if even a reply that is ready now would leave after the deadline."""
        leaves = self._came_in + (self._due() if self._seconds > 0 else self._passed())
        if leaves > self._deadline:
            delayed = f", held until reply-after = {self._seconds:g} s" if self._seconds > 0 else ""
            raise LateError(
                f"a reply{delayed} would leave {leaves - self._deadline:.1f} s too late for its "
                "round: nothing is charged. If this happens often, the round-timeout is too short"
            )

    def restart(self) -> None:
        """Restart the delay of a request that had to wait for another request's reply."""
        self._came_in = time.monotonic()

    def _due(self) -> float:
        """Return the time at which the reply is due, in seconds after the request arrived."""
        due, passed = self._seconds, self._passed()
        while passed > due:
            due *= 2
        return due

    def _passed(self) -> float:
        return time.monotonic() - self._came_in


def seconds_left(created_at: float, time_to_live: float) -> float:
    """Return how many seconds are left until the reply to a message must leave.

    `created_at` is in seconds since 1970, as measured by the sender's clock, which may be ahead of
    this machine's clock. After the reply's deadline, the result is negative.
    """
    return sending_from(time_to_live) - max(time.time() - created_at, 0.0)


def sending_from(time_to_live: float) -> float:
    """Return a message's time to live minus the time reserved to send the reply, in seconds."""
    return time_to_live - min(_SENDING_MOST, _SENDING_SHARE * time_to_live)
