"""Answers one message with the installed app, in a process that the executor starts.

`python -P -m dpfact_flower.runtime.clientapp` reads a `Question` from standard input. It writes one
line with the question's arrival time by `time.monotonic`, one line with the reply's size, and the
reply. This process has the patients, and no connection to the SuperNode.
"""

from __future__ import annotations

import os
import sys
import time

from flwr.app import Error, Message

from dpfact_flower.client_app import app
from dpfact_flower.machine.memory import hold_beside, offer_to_be_ended
from dpfact_flower.runtime.supernode import message_to_bytes
from dpfact_flower.runtime.worker import Question
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.reply_timing import ReplyDelay
from dpfact_flower.wire.records import CLIENT_APP_RAISED


def answer(question: Question, came_in: float) -> Message:
    """Answer one message, using only the hospital's own settings."""
    settings = SiteSettings.from_config(question.settings)
    try:
        return app(question.message, question.context())
    except Exception as error:  # no text of an error may reach the server
        reason = log_privately(settings.site, error)
        # The app's own functions delay their replies; this message reached none of them.
        ReplyDelay(settings.reply_after, came_in).wait()
        return Message(Error(CLIENT_APP_RAISED, reason), reply_to=question.message)


def main() -> None:
    """Answer the question on standard input."""
    offer_to_be_ended()
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # other output goes to the log
        question, came_in = Question.from_bytes(sys.stdin.buffer.read()), time.monotonic()
        hold_beside(question.held)
        out.write(f"{came_in}\n".encode())
        out.flush()
        reply = message_to_bytes(answer(question, came_in))
        out.write(f"{len(reply)}\n".encode())
        out.write(reply)


if __name__ == "__main__":
    main()
