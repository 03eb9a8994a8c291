"""One message answered by the installed app, in a process of its own: what the executor starts.

`python -P -m dpfact_flower.runtime.clientapp CONFIG HOST:PORT`, with the message's token on
standard input: arguments can be read by everybody on the machine.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from flwr.app import Error, Message

from dpfact_flower.client_app import CLIENT_APP_RAISED, app
from dpfact_flower.errors import SettingsError
from dpfact_flower.runtime.supernode import Claimed, Work
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.config import read_node_config
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.hold import Hold


def answer(work: Work, config: Path) -> Message:
    """The reply to one message, by the hospital's own settings alone."""
    site, hold, came_in = "", Hold(0), time.monotonic()
    try:
        own = read_node_config(config)
        settings = SiteSettings.from_config(own)
        site, hold = settings.site, Hold(settings.reply_after, came_in)
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


def main(config: str, address: str) -> None:
    """Fetch the message that the token on standard input stands for, answer it, send the reply."""
    token = sys.stdin.readline().strip()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with Claimed(address, token) as work:
            work.send(answer(work, Path(config)))
    except Exception as error:  # the SuperNode has gone, or the run has ended
        log_privately("", error)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
