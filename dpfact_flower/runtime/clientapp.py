"""A program that answers one message with the installed app. The executor starts it.

`python -P -m dpfact_flower.runtime.clientapp` reads a `Question` from standard input. It writes the
question's arrival time (`time.monotonic`) on one line, the reply's size on the next, and the reply.
This process can read the patients' data, and has no connection to the SuperNode.
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
from dpfact_flower.site.disclosure import ReplyDelay, log_privately
from dpfact_flower.wire.records import CLIENT_APP_RAISED


def answer(question: Question, came_in: float) -> Message:
    """Answer one message with the hospital's own settings only."""
    settings = SiteSettings.from_config(question.settings)
    try:
        return app(question.message, question.context())
    except Exception as error:  # no text of an error may reach the server
        reason = log_privately(settings.site, error)
        # The app's own functions delay their replies, but this message reached no such function.
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
