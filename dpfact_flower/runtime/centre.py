"""The centre's SuperLink that ends where its helper has: it is started again then, with a new one.

Flower 1.41's SuperLink starts one process, a SuperExec, that starts the runs' ServerApps, and does
not look after it. Where that is killed, for want of memory, say, every run stays `pending`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dpfact_flower.machine.quiet import quietly

_HELPER = "flower-superexec"[:15]
"""As Linux has the names of processes."""
_logger = logging.getLogger(__name__)


def centre(options: Sequence[str]) -> None:
    """Be a SuperLink until it is ended, or its helper ends.

    Parameters
    ----------
    options : sequence of str
        Of `flower-superlink`.
    """
    os.environ.update(quietly(os.environ))  # before Flower is imported
    from flwr.superlink.cli import flower_superlink  # noqa: PLC0415

    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415

    use_flower_handler()
    sys.argv = ["flower-superlink", *options]
    signal.signal(signal.SIGCHLD, lambda *_: _end_without_helper())
    flower_superlink()


def _end_without_helper() -> None:
    if _helper_has_ended():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _logger.error("the SuperLink's helper, which starts the runs, has ended, so it ends too")
        os.kill(os.getpid(), signal.SIGTERM)


def _helper_has_ended() -> bool:
    """Not of one that was stopped, or goes on, nor of what libraries ask the system."""
    with suppress(OSError):  # it has been seen to elsewhere
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended:
            return Path(f"/proc/{ended.si_pid}/comm").read_text().strip() == _HELPER
    return False
