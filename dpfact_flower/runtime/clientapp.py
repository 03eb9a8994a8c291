"""One message answered by the installed app, in a process of its own: what the executor starts.

`python -P -m dpfact_flower.runtime.clientapp CONFIG HOST:PORT [HANDLE]`, with the message's token
on standard input: arguments can be read by everybody on the machine. HANDLE is that of a pipe for
`dpfact_flower.runtime.stand_in.Notes`.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from flwr.app import Error, Message

from dpfact_flower.client_app import app
from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.memory import offer_to_be_ended
from dpfact_flower.runtime.stand_in import Notes
from dpfact_flower.runtime.supernode import Claimed, Work
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.config import read_node_config
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.hold import Hold
from dpfact_flower.wire.records import CLIENT_APP_RAISED

_NO_NOTES = Notes()


def answer(work: Work, config: Path, notes: Notes = _NO_NOTES) -> Message:
    """The reply to one message, by the hospital's own settings alone."""
    site, hold, came_in = "", Hold(0), time.monotonic()
    try:
        own = read_node_config(config)
        settings = SiteSettings.from_config(own)
        site, hold = settings.site, Hold(settings.reply_after, came_in)
        notes.answering(work, came_in, settings.reply_after)
        if work.node_config:
            raise SettingsError(
                f"the SuperNode has a --node-config, and {config} says what this site allows: "
                "start the SuperNode without one"
            )
        return app(work.message, work.own_context(own))
    except Exception as error:  # nothing an error says may reach the server
        reason = log_privately(site, error)
        hold.wait()  # of what reaches no function of the app, which hold their replies themselves
        return Message(Error(CLIENT_APP_RAISED, reason), reply_to=work.message)


def main(config: str, address: str, handle: str = "") -> None:
    """Fetch the message that the token on standard input stands for, answer it, send the reply."""
    token = sys.stdin.readline().strip()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    offer_to_be_ended()
    notes = Notes(int(handle)) if handle else _NO_NOTES
    try:
        with Claimed(address, token) as work:
            reply = answer(work, Path(config), notes)
            notes.sending()
            work.send(reply)
    except Exception as error:  # the SuperNode has gone, or the run has ended
        log_privately("", error)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
