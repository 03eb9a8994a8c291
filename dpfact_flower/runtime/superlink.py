"""A SuperLink on loopback that this process starts and stops, for `dpfact simulate` and notebooks.

By itself, `flwr run` starts a SuperLink that stays behind as a daemon and keeps the folder and
environment of its first run. This SuperLink has its own Flower home and ports, and ends with this
process. Together with `local_supernode`, it makes a whole deployment on one machine.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import tomli_w

from dpfact_flower.machine.files import private_folder
from dpfact_flower.machine.logs import ProgressCallback
from dpfact_flower.runtime.connection import (
    COMPLETED,
    Connection,
    RunFailedError,
    quiet_environment,
    tool,
)
from dpfact_flower.runtime.serve import MEASURING_LINE
from dpfact_flower.runtime.supervisor import supervised
from dpfact_flower.settings import Scalar

_CONNECTION = "dpfact"
_ROUND = re.compile(r"\[ROUND (\d+)/(\d+)\]")
_WORTH_SHOWING = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
_NOISE = ("Since flwr 1.", "Manually terminating ClientAppActor")
"""Flower's warnings about its own defaults and actors, which need no action."""


class LogFollower:
    """A reader of Flower's log of a run that shows progress and warnings to the user."""

    def __init__(self, report_progress: ProgressCallback, show: Callable[[str], None]) -> None:
        self._report_progress, self._show = report_progress, show
        self._last: deque[str] = deque(maxlen=200)

    def __call__(self, line: str) -> None:
        """Process the next line."""
        self._last.append(line)
        if match := _ROUND.search(line):
            number, rounds = map(int, match.groups())
            self._report_progress("rounds", (number - 1) / rounds)
        elif MEASURING_LINE in line:
            self._report_progress("rounds", 1.0)
            self._report_progress("measuring", 0.0)
        elif _WORTH_SHOWING.search(line) and not any(noise in line for noise in _NOISE):
            self._show(line.rstrip())

    def show_all(self) -> None:
        """Show the last log lines of a failed run, at every level."""
        for line in self._last:
            self._show(line.rstrip())


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink: its Flower home with log and database, its address and supervisor."""

    home: Path
    address: str
    process: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which Flower's commands use this SuperLink."""
        return {**quiet_environment(), "FLWR_HOME": str(self.home)}

    def run(
        self,
        app: Path,
        config: Mapping[str, Scalar],
        *,
        federation_config: str = "",
        follower: LogFollower | None = None,
    ) -> None:
        """Run a Flower App to its end, with its log sent to the follower or else to the output."""
        link = Connection(_CONNECTION, self.environment)
        run = link.submit(app, config, federation_config)
        with nullcontext() if follower is None else _followed(follower) as log:
            status = link.follow(run, log).get("status")
        if status != COMPLETED:
            if follower:
                follower.show_all()
            raise RunFailedError(f"the run ended as {status!r}; its log is above")


@contextmanager
def _followed(follower: LogFollower) -> Iterator[int]:
    """Yield a file descriptor. All lines written to it reach a follower by the context's end."""
    read, write = os.pipe()

    def follow() -> None:
        with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                follower(line)

    following = Thread(target=follow)
    following.start()
    try:
        yield write
    finally:
        os.close(write)
        following.join()


@contextmanager
def local_superlink(home: Path, *, simulation: bool) -> Iterator[SuperLink]:
    """Start a SuperLink on a free loopback port. Stop it with its helpers at the context's end.

    In a simulation, its clients are virtual (Ray). Otherwise, they are real SuperNodes.
    """
    home = home.absolute()
    private_folder(home)
    port, control = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    connection = {"address": address, "insecure": True}
    config = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    command = [
        tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port),
        "--control-api-address", f"127.0.0.1:{control}", "--database", str(home / "state.db"),
        "--isolation", "subprocess", "--disable-runtime-dependency-installation",
        *(["--simulation"] if simulation else []),
    ]  # fmt: skip
    environment, log = {**quiet_environment(), "FLWR_HOME": str(home)}, home / "superlink.log"
    with (
        log.open("ab") as file,
        supervised(command, env=environment, stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise RunFailedError(f"flower-superlink ended with {process.returncode}; see {log}")
        yield SuperLink(home, address, process)


@contextmanager
def local_supernode(
    superlink: SuperLink,
    config: Mapping[str, Scalar],
    log: Path,
    *,
    security: Sequence[str] = ("--insecure",),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a site's SuperNode on this machine, with a node config (see `SiteSettings`).

    It runs any app that the SuperLink sends. For hospitals, docs/how-to/deploy.md is the safe way.
    """
    text = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in config.items()
    )
    command = [
        tool("flower-supernode"), *security, "--superlink", superlink.address,
        "--port", str(free_port()), "--node-config", text,
    ]  # fmt: skip
    with (
        log.open("wb") as file,
        supervised(command, env=superlink.environment, stdout=file, stderr=file) as process,
    ):
        yield process


def free_port() -> int:
    """Return a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
