"""The reply of a process that died while it answered: the executor sends it in its place.

The system ends a process for want of memory without a word. Flower finds that out within a minute,
and tells the centre at a time that depends on when the process died, and so on the patients. So
each process notes, before it looks at anything, which message it answers and when its reply is due.
Where it ends before it began to send, the executor says what every round says that failed, when
every such reply leaves.
"""

from __future__ import annotations

import json
import logging
import os
from typing import NamedTuple, Self

from flwr.app import Error, Message

from dpfact_flower.errors import MessageError, RoundFailedError
from dpfact_flower.runtime.supernode import Claimed, Noted, Work
from dpfact_flower.site.disclosure import public_reason
from dpfact_flower.site.hold import Hold
from dpfact_flower.wire.records import CLIENT_APP_RAISED

_MOST = 2**12
"""Bytes of a note, which every pipe takes without a reader."""
_SENDING = b"sending"

_logger = logging.getLogger(__name__)


class Due(NamedTuple):
    """Which message is being answered, and when the reply is due.

    Attributes
    ----------
    noted : Noted
    came_in : float
        By `time.monotonic`, which all processes of a machine share.
    reply_after : float
        Seconds.
    """

    noted: Noted
    came_in: float
    reply_after: float

    def to_bytes(self) -> bytes:
        """A line that `from_bytes` reads."""
        run, node, message = self.noted
        return f"{json.dumps([run, node, message.hex(), *self[1:]])}\n".encode()

    @classmethod
    def from_bytes(cls, line: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises
        ------
        ValueError
            If it is something else: the process died while it wrote.
        """
        run, node, message, came_in, reply_after = json.loads(line)
        return cls(Noted(run, node, bytes.fromhex(message)), came_in, reply_after)


class Notes:
    """Where a process notes what it answers; its executor reads it once the process has ended.

    Parameters
    ----------
    handle : int, optional
        End of a pipe. Without one nothing is noted.
    """

    def __init__(self, handle: int | None = None) -> None:
        self._handle = handle

    def answering(self, work: Work, came_in: float, reply_after: float) -> None:
        """Note what is going to be answered; before anything is looked at.

        Raises
        ------
        MessageError
            If the message has names that are too long for a note: else it would be the server's
            choice whether anybody answers for this process.
        """
        line = Due(work.noted(), came_in, reply_after).to_bytes()
        if len(line) > _MOST:
            raise MessageError(f"message: names of {len(line):,} bytes; the limit is {_MOST:,}")
        if self._handle is not None:
            os.write(self._handle, line)

    def sending(self) -> None:
        """Note that the SuperNode may have the reply from now on."""
        if self._handle is not None:
            os.write(self._handle, _SENDING)


def answer_for_the_dead(address: str, token: str, told: bytes) -> None:
    """Say that a round failed, for a process that has ended, when that is due.

    Parameters
    ----------
    address, token : str
        As for `Claimed`.
    told : bytes
        All that the process noted.
    """
    line, ended, rest = told.partition(b"\n")
    if not ended or rest:
        return  # it had not begun, or was sending: then Flower says that it is gone
    due = Due.from_bytes(line)
    _logger.error(
        "the process that answered has died, of want of memory perhaps (see the system's log); "
        "the reply says that the round failed"
    )
    with Claimed(address, token, due.noted) as work:
        Hold(due.reply_after, due.came_in).wait()
        reason = public_reason(RoundFailedError())
        work.send(Message(Error(CLIENT_APP_RAISED, reason), reply_to=work.message))
