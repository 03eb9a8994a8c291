"""Run `dpfact site answer`, the executor that answers messages with the hospital's own app.

With every run, a SuperLink sends an app to the hospitals. Flower's own executor,
`flower-superexec`, starts this app. Anyone who may submit a run could therefore run code at the
hospital. The executor in this module starts the installed `dpfact_flower.runtime.worker`, and never
unpacks, installs or imports an app from the SuperLink.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.files import private_folder, user_id, user_name
from dpfact_flower.machine.flower import QUIET, refuse_unknown_version
from dpfact_flower.machine.memory import disable_core_dumps
from dpfact_flower.machine.processes import listeners
from dpfact_flower.runtime.services import HOST
from dpfact_flower.site.hospital import ANSWERING, MACHINE_CODE, read_site_settings

if TYPE_CHECKING:
    from dpfact_flower.runtime.supernode import Tasks

_logger = logging.getLogger(__name__)


def execute(config: Path, secret: Path, port: int, host: str = HOST, node_user: str = "") -> None:
    """Answer a SuperNode's messages until this process is stopped.

    On SIGTERM, the process ends after the current message. A second SIGTERM ends the process at
    once. `config` is read again for each message. By default, `node_user` is this process's user.
    """
    refuse_unknown_version()
    uid = user_id(node_user) if node_user else os.geteuid()
    state = Path(read_site_settings(config).state_dir)
    os.umask(0o077)
    disable_core_dumps()
    private_folder(state / MACHINE_CODE)
    _set_environment(state)  # before Flower is imported
    from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415
    from dpfact_flower.runtime.supernode import OwnSuperNode, Tasks  # noqa: PLC0415
    from dpfact_flower.runtime.worker import Answering  # noqa: PLC0415

    use_flower_handler()
    node = OwnSuperNode(host, port, uid)
    content = secret.read_bytes()
    if len(content) < 32:
        raise SettingsError(f"{secret}: need 32 bytes or more: openssl rand -out FILE 32")
    (state / ANSWERING).unlink(missing_ok=True)  # left by a killed executor
    _logger.info("answering %s's SuperNode at %s:%d for %s", user_name(uid), host, port, config)
    if listeners(host, port) is None:
        _logger.warning(
            "cannot see which process listens at %s:%d (on another machine, in a container, or not "
            "Linux), so the executor answers any process that takes this port", host, port,
        )  # fmt: skip
    _serve(Tasks(node, content), Answering(config.absolute(), node).answer)


def _serve(tasks: Tasks, answer: Callable[[str], None]) -> None:
    """Answer messages one at a time.

    If two computations ran at the same time, the delay or failure of one computation could reveal
    facts about the data of the other.
    """
    is_busy = is_stopping = False

    def end(number: int, _: FrameType | None) -> None:
        """Exit only after the current answer, because the answer's cost may already be charged."""
        nonlocal is_stopping
        if not is_busy or is_stopping:
            sys.exit(0)
        is_stopping = True
        _logger.info("stopping after the current message is answered")

    signal.signal(signal.SIGTERM, end)
    was_there = True
    while not is_stopping:
        is_busy = True
        token = tasks.claim()
        is_there = token is not None
        if is_there != was_there:
            _logger.info("the SuperNode %s", "is there" if is_there else "does not answer; waiting")
        was_there = is_there
        if token:
            answer(token)
        else:
            is_busy = False
            time.sleep(0.5)


def _set_environment(state: Path) -> None:
    """In `os.environ`, disable proxies and telemetry, and set the folders of Flower and numba.

    Proxy settings are removed, because otherwise even local traffic could go to a proxy. Numba's
    cache of compiled code is in the state folder by default, because anyone who can write to the
    cache can run code at the site. Flower needs a home folder on import, but stores nothing there.
    """
    for proxy in [key for key in os.environ if key.lower().endswith("_proxy")]:
        del os.environ[proxy]
    os.environ.setdefault("NUMBA_CACHE_DIR", str(state / MACHINE_CODE))
    os.environ.update(QUIET, FLWR_HOME=str(state / ".flower"))
