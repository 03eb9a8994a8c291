"""A message answered in a process of its own, which has the patients and no way to the SuperNode.

The executor, the parent, owns the message: it fetches it, starts the process, and sends the reply.
Where the process dies or hangs, the executor replies for it: with the code of every round that
failed, at the time when every such reply leaves. Otherwise the SuperNode would find out within a
minute, and tell the centre at a time that depends on when the process died, and so on the patients.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from flwr.app import Context, Error, Message, RecordDict

from dpfact_flower.errors import RoundFailedError, SettingsError
from dpfact_flower.runtime.supernode import (
    ClaimedMessage,
    OwnSuperNode,
    claimed,
    message_from_bytes,
    message_to_bytes,
)
from dpfact_flower.settings import Scalar, SiteSettings
from dpfact_flower.site.config import read_node_config
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.metrics import ANSWERING
from dpfact_flower.site.reply_timing import ReplyDelay, seconds_left
from dpfact_flower.wire.records import CLIENT_APP_RAISED

_COMMAND = (sys.executable, "-P", "-m", "dpfact_flower.runtime.clientapp")
_GRACE_SECONDS = 60.0
"""What a process has beyond the end of its round, to say that it is late."""
_MOST_SECONDS = 20 * 86_400.0
"""The longest time that the system waits at once."""


class Question(NamedTuple):
    """What a process is asked: a message of a run to a node, and the hospital's own settings.

    `held` is the memory in bytes that the executor has for the message, as it came and as it is
    handed on.
    """

    message: Message
    run: int
    node: int
    settings: Mapping[str, Scalar]
    held: int = 0

    def to_bytes(self) -> bytes:
        """What `from_bytes` reads."""
        message = message_to_bytes(self.message)
        head = json.dumps([self.run, self.node, dict(self.settings), 2 * len(message)])
        return b"%b\n%b" % (head.encode(), message)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        head, _, message = data.partition(b"\n")
        return cls(message_from_bytes(message), *json.loads(head))

    def context(self) -> Context:
        """Context for the app: the hospital's settings, and nothing of what the SuperLink sent."""
        return Context(self.run, self.node, dict(self.settings), RecordDict(), {})


class Answering:
    """Answers messages of a SuperNode, each in a process that `command` starts.

    The hospital's settings, `config`, are read again for every message.
    """

    def __init__(self, config: Path, node: OwnSuperNode, command: Sequence[str] = _COMMAND) -> None:
        self._config, self._node, self._command = config, node, command
        self._last: subprocess.Popen[bytes] | None = None

    def answer(self, token: str) -> None:
        """Answer a claimed message; a failure stands in the log."""
        try:
            with claimed(self._node, token) as work:
                work.send(self._reply(work))
        except Exception as error:  # the SuperNode has gone, or the run has ended
            log_privately("", error)

    def _reply(self, work: ClaimedMessage) -> Message:
        """The process's reply, or an error's code when a reply is due."""
        site, delay = "", ReplyDelay(0)
        try:
            own = read_node_config(self._config)
            settings = SiteSettings.from_config(own)
            site, delay = settings.site, ReplyDelay(settings.reply_after)
            if work.context.node_config:
                raise SettingsError(
                    f"the SuperNode has a --node-config, and {self._config} says what this site "
                    "allows: start the SuperNode without one"
                )
            question = Question(work.message, work.context.run_id, work.context.node_id, own)
            metadata = work.message.metadata
            seconds_to_live = seconds_left(metadata.created_at, metadata.ttl)
            seconds = min(
                max(settings.reply_after, seconds_to_live) + _GRACE_SECONDS, _MOST_SECONDS
            )
            end = time.monotonic() + seconds
            with _noted(Path(settings.state_dir)):
                came_in, *answer = self._ask(question, seconds)
            if came_in:
                delay = ReplyDelay(settings.reply_after, float(came_in))
            if len(answer) < 2 or len(answer[1]) != int(answer[0]):
                raise RoundFailedError(_fault(seconds, hung=time.monotonic() >= end))
            return message_from_bytes(answer[1])
        except Exception as error:  # nothing an error says may reach the server
            reason = log_privately(site, error)
            delay.wait()
            return Message(Error(CLIENT_APP_RAISED, reason), reply_to=work.message)

    def _ask(self, question: Question, seconds: float) -> list[bytes]:
        """What a process says within this time: when its clock began, its reply's size, its reply.

        The reply leaves without waiting for the end of the process: to give its memory back takes
        as long as that is large. The next message waits for that.
        """
        if self._last is not None:
            self._last.wait()
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        self._last, end = process, threading.Timer(seconds, process.kill)
        end.daemon = True
        end.start()
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(question.to_bytes())
            with process.stdout as stdout:
                return stdout.read().split(b"\n", 2)
        finally:
            end.cancel()
            process.kill()


def _fault(seconds: float, *, hung: bool) -> str:
    fault = (
        f"was ended: it hung, or needed more than {seconds:.0f} s"
        if hung
        else "has died, of want of memory perhaps (see the system's log)"
    )
    return f"the process that answered {fault}; the reply says that the round failed"


@contextmanager
def _noted(state: Path) -> Iterator[None]:
    """Note for the hospital's figures since when a message is being answered."""
    note = state / ANSWERING
    with suppress(OSError):
        note.touch()
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()
