"""The hospital's own executor: it answers a SuperNode's messages with the installed app.

A SuperLink sends an app (a FAB) with every run, and Flower's own executor, `flower-superexec`,
starts it at the hospital: whoever may submit a run there runs code here. This stands in its place,
beside a SuperNode with `--isolation process`. It claims messages for a ClientApp and starts the
installed `dpfact_flower.runtime.clientapp` for each, by its path and not by a name that somebody
might take. What the SuperLink sent is never unpacked, installed or imported, and other kinds of app
are not asked for.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from dpfact_flower.errors import MissingDependencyError, SettingsError
from dpfact_flower.machine.access import user_id, user_name
from dpfact_flower.machine.files import private_folder
from dpfact_flower.machine.flower import refuse_other_flower
from dpfact_flower.machine.listeners import listeners
from dpfact_flower.machine.memory import leave_no_dump
from dpfact_flower.machine.quiet import quietly, without_proxies
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.check import MACHINE_CODE
from dpfact_flower.site.config import read_node_config
from dpfact_flower.site.metrics import ANSWERING

_PAUSE_SECONDS = 0.5
_HOME = ".flower"
_logger = logging.getLogger(__name__)


class _Claims(Protocol):
    def claim(self) -> str | None: ...


def execute(
    config: Path, secret: Path, port: int, host: str = "127.0.0.1", node_user: str = ""
) -> None:
    """Answer a SuperNode's messages until this process is ended.

    SIGTERM ends it when the messages that it has are answered, a second one at once.

    Parameters
    ----------
    config : Path
        The hospital's settings, as `dpfact_flower.site.config.read_node_config` reads them; read
        again for every message.
    secret : Path
        The SuperNode's `--superexec-auth-secret-file`, or a copy.
    port : int
        The SuperNode's.
    host : str
        Where it is: this machine, or a container of it.
    node_user : str
        Whose it is, by name or number; by default this process's own user.

    Raises
    ------
    MissingDependencyError
        If another Flower is installed.
    SettingsError
        If a file cannot be used, there is no such user, or the SuperNode has another secret.
    """
    refuse_other_flower()
    uid = user_id(node_user) if node_user else os.geteuid()
    state = Path(SiteSettings.from_config(read_node_config(config)).state_dir)
    os.umask(0o077)
    leave_no_dump()
    private_folder(state / MACHINE_CODE)
    environment = _environment(state)
    os.environ.clear()
    os.environ.update(environment)  # before Flower is imported
    address = f"{uid}@{host}:{port}"
    tasks = _tasks(address, _read_secret(secret))
    from dpfact_flower.runtime.worker import Answering  # noqa: PLC0415

    (state / ANSWERING).unlink(missing_ok=True)  # of an executor that was killed
    signal.signal(signal.SIGTERM, _ending)
    _logger.info(
        "answering the SuperNode of %s at %s:%d for %s", user_name(uid), host, port, config
    )
    if listeners(host, port) is None:
        _logger.warning(
            "who listens at %s:%d cannot be seen here (another machine or container, or no Linux): "
            "whoever gets that port is answered like the SuperNode", host, port,
        )  # fmt: skip
    _serve(tasks, Answering(config.absolute(), address).answer)


def _tasks(address: str, secret: bytes) -> _Claims:
    try:
        from dpfact_flower.machine.logs import use_flower_handler  # noqa: PLC0415
        from dpfact_flower.runtime.supernode import Tasks  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependencyError(f"nothing was started: {error}") from None
    use_flower_handler()
    return Tasks(address, secret)


def _serve(tasks: _Claims, answer: Callable[[str], None]) -> None:
    """Answer one message after another, and none beside another.

    A second process starts the slower, and runs out of memory the sooner, the more the first has to
    do for its patients; and both can be seen in its reply. A server that sends message after
    message would so find out what `reply-after` hides. So the next one waits, too, for the reply of
    a process that has died.
    """
    there = True
    while True:
        token = tasks.claim()
        if there != (there := token is not None):
            _logger.info("the SuperNode %s", "is there" if there else "does not answer; waiting")
        if token:
            with _ending.after_this():
                answer(token)
        else:
            time.sleep(_PAUSE_SECONDS)


class _Ending:
    """Ends this process on SIGTERM: after the message that is being answered, if there is one.

    That may have been charged already. A second SIGTERM ends it at once.
    """

    def __init__(self) -> None:
        self._busy = self._asked = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        if not self._busy or self._asked:
            sys.exit(0)
        self._asked = True
        _logger.info("ending; a message is answered first")

    @contextmanager
    def after_this(self) -> Iterator[None]:
        """Be busy, and end afterwards if that was asked for meanwhile."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._asked:
            sys.exit(0)


_ending = _Ending()


def _environment(state: Path) -> dict[str, str]:
    """What this process has, without proxies and telemetry, and with folders of the site's own.

    numba's cache is unpickled, and holds the code that draws the noise: whoever can write there is
    this site. Nobody else can write to the state folder. Flower asks for a home when it is
    imported; nothing is put there.
    """
    code = os.environ.get("NUMBA_CACHE_DIR", str(state / MACHINE_CODE))
    own = {"NUMBA_CACHE_DIR": code, "FLWR_HOME": str(state / _HOME)}
    return {**quietly(without_proxies(os.environ)), **own}


def _read_secret(path: Path) -> bytes:
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    if len(secret) < 32:
        raise SettingsError(
            f"{path}: a secret of 32 bytes or more is needed: openssl rand -out FILE 32"
        )
    return secret
