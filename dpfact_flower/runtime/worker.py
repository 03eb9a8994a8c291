"""Answer each message in a separate process, which has no connection to the SuperNode.

The parent process, the executor, fetches the message, starts a new process (`main`), and sends the
reply. The executor itself never reads patients' data. If the new process dies, the executor sends
an error code when the reply would be due. The SuperNode itself would report the failure at a time
that depends on patients' data. A process that hangs is killed after its time limit.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from dpfact_flower.errors import RoundFailedError, SettingsError
from dpfact_flower.machine.logs import use_flower_handler
from dpfact_flower.machine.memory import be_killed_first, count_parent_memory
from dpfact_flower.runtime.supernode import OwnSuperNode, claimed
from dpfact_flower.settings import Scalar, SiteSettings
from dpfact_flower.site.disclosure import ReplyDelay, log_privately, seconds_left
from dpfact_flower.site.hospital import marked_as_answering, read_site_settings
from dpfact_flower.wire.records import error_reply

_COMMAND = (sys.executable, "-P", "-m", "dpfact_flower.runtime.worker")
_GRACE_SECONDS = 60.0
"""Time in seconds after a round's end in which a process can still report that it was late."""


def message_to_bytes(message: Message) -> bytes:
    """Serialise a message with its content, in Flower's format."""
    return bytes(message_to_proto(message).SerializeToString())


def message_from_bytes(data: bytes) -> Message:
    """Read a message that `message_to_bytes` wrote."""
    return message_from_proto(ProtoMessage.FromString(data))


def question_to_bytes(message: Message, context: Context, own: Mapping[str, Scalar]) -> bytes:
    """Serialise the worker's input: a message, the ids in `context`, and the site's settings."""
    head = json.dumps([context.run_id, context.node_id, dict(own)])
    return b"%b\n%b" % (head.encode(), message_to_bytes(message))


def question_from_bytes(data: bytes) -> tuple[Message, Context, int]:
    """Return a message, its `Context`, and the total bytes of two copies of the message."""
    head, _, message = data.partition(b"\n")
    run, node, settings = json.loads(head)
    context = Context(run, node, settings, RecordDict(), {})
    return message_from_bytes(message), context, 2 * len(message)


class Answering:
    """A helper that starts a new process to answer each message from a SuperNode."""

    def __init__(self, config: Path, node: OwnSuperNode, command: Sequence[str] = _COMMAND) -> None:
        self._config, self._node, self._command = config, node, command
        self._last: subprocess.Popen[bytes] | None = None

    def answer(self, token: str) -> None:
        """Answer the message that `token` identifies, and log failures."""
        try:
            with claimed(self._node, token) as (message, context, send):
                send(self._reply(message, context))
        except Exception as error:  # the SuperNode is down, or the run has ended
            log_privately(self._config.stem, error)

    def _reply(self, message: Message, context: Context) -> Message:
        """Return a reply. If an error occurs, return an error code when the reply is due."""
        site, delay = self._config.stem, ReplyDelay(0)
        try:
            settings = read_site_settings(self._config)
            site, delay = settings.site, ReplyDelay(settings.reply_after)
            if context.node_config:
                raise SettingsError(
                    f"the SuperNode has a --node-config, and {self._config} says what this site "
                    "allows: start the SuperNode without one"
                )
            question = question_to_bytes(message, context, settings.to_config())
            metadata = message.metadata
            seconds = max(settings.reply_after, seconds_left(metadata.created_at, metadata.ttl))
            seconds = min(seconds + _GRACE_SECONDS, 20 * 86_400.0)  # the longest possible timer
            end = time.monotonic() + seconds
            with marked_as_answering(Path(settings.state_dir)):
                came_in, *answer = self._ask(question, seconds)
            if came_in:
                delay = ReplyDelay(settings.reply_after, float(came_in))
            if len(answer) < 2 or len(answer[1]) != int(answer[0]):
                fault = "has died, perhaps for lack of memory (see the system's log)"
                if time.monotonic() >= end:
                    fault = f"was ended: it hung, or needed more than {seconds:.0f} s"
                raise RoundFailedError(f"the process that answered {fault}; the round failed")
            return message_from_bytes(answer[1])
        except Exception as error:  # no text of an error may reach the server
            reason = log_privately(site, error)
            delay.wait()
            return error_reply(message, reason)

    def _ask(self, question: bytes, seconds: float) -> list[bytes]:
        """Send `question` to a new process, and return the parts of its output (see `main`).

        Do not wait until the process exits. The time to free its memory depends on patients' data,
        and would delay the reply. The next call waits until the old process has exited.
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
                stdin.write(question)
            with process.stdout as stdout:
                return stdout.read().split(b"\n", 2)
        finally:
            end.cancel()
            process.kill()


def app_reply(message: Message, context: Context, came_in: float, app: ClientApp) -> Message:
    """Return the reply. If the app fails, return an error code when the reply is due."""
    settings = SiteSettings.from_config(context.node_config)
    try:
        return app(message, context)
    except Exception as error:  # no text of an error may reach the server
        reason = log_privately(settings.site, error)
        # The app's own functions delay their replies, but this message reached no such function.
        ReplyDelay(settings.reply_after, came_in).wait()
        return error_reply(message, reason)


def main() -> None:
    """Read a message from standard input, and answer the message with the installed app.

    Write the message's arrival time (`time.monotonic`) on one line, the reply's size on the next
    line, and then the reply itself.
    """
    # The executor never imports the app. This process imports the app before the question arrives,
    # because the reply's delay is measured from the question's arrival.
    from dpfact_flower.client_app import app  # noqa: PLC0415

    use_flower_handler()
    be_killed_first()
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # other output goes to the log
        message, context, held = question_from_bytes(sys.stdin.buffer.read())
        came_in = time.monotonic()
        count_parent_memory(held)  # the executor has two copies of the message
        out.write(f"{came_in}\n".encode())
        out.flush()
        reply = message_to_bytes(app_reply(message, context, came_in, app))
        out.write(f"{len(reply)}\n".encode())
        out.write(reply)


if __name__ == "__main__":
    main()
