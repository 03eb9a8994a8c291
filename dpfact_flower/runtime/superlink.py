"""Submit a run to a SuperLink, follow the run and get its outcome, or start a local SuperLink.

`flwr run` exits with code 0 even if the run fails. If the ServerApp is killed, the run's log ends
at once, but the SuperLink reports the failure only a minute later. `Connection` therefore requests
the run's state repeatedly until the run has ended.

Without a SuperLink, `flwr run` starts one that outlives the run, and later runs use its folder and
environment. `local_superlink` starts a SuperLink that exits with this process.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import tomli_w

from dpfact_flower.errors import DPFactError, MissingDependencyError, SettingsError
from dpfact_flower.machine.files import private_folder
from dpfact_flower.machine.flower import QUIET
from dpfact_flower.machine.logs import ProgressCallback
from dpfact_flower.runtime.supervisor import supervised
from dpfact_flower.settings import Scalar

MEASURING_LINE = "measuring what was learned: errors, prediction of outcomes, phenotypes"
"""Log line showing that the last round has ended."""
_CONNECTION = "dpfact"
_ROUND = re.compile(r"\[ROUND (\d+)/(\d+)\]")
_WORTH_SHOWING = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
_NOISE = ("Since flwr 1.", "Manually terminating ClientAppActor")
"""Flower's warnings about its own defaults and actors, which need no action."""
COMPLETED = "finished:completed"
UNKNOWN = "unknown"
"""This package's own status for a run on which the SuperLink no longer reports."""
_FINISHED = "finished"
"""Prefix of Flower's status for every run that has ended."""
_POLL_SECONDS = 3.0
_GONE_SECONDS = 300.0
"""Longest wait for a SuperLink to restart. After that, a run's outcome counts as unknown."""
_LOOK_SECONDS = 120.0
"""Interval in seconds between requests for a run's state while Flower streams the run's log."""
_USED_PORTS: set[int] = set()


class RunFailedError(DPFactError, RuntimeError):
    """Raised when Flower did not complete a run."""

    code = "run-failed"


def quiet_environment() -> dict[str, str]:
    """Return an environment with Flower's helpers on the PATH, and without telemetry."""
    path = filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH")))
    environment = {**os.environ, **QUIET, "PATH": os.pathsep.join(path)}
    for coloured in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # Jupyter sets these for colours
        environment.pop(coloured, None)
    return environment


def tool(name: str) -> str:
    """Return the path of a command in this Python environment."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise MissingDependencyError(f"{name}: not found beside {sys.executable}; install flwr")
    return str(path)


def _in_flowers_syntax(config: Mapping[str, Scalar]) -> str:
    """Return settings in the syntax of Flower's options `--run-config` and `--node-config`."""
    for value in config.values():
        if isinstance(value, str) and any(c in value for c in "\"'\n\\"):
            raise SettingsError(f"run config: {value!r} holds a quote, backslash or line break")
    return " ".join(line.replace(" = ", "=", 1) for line in tomli_w.dumps(config).splitlines())


@dataclass(frozen=True)
class Connection:
    """A SuperLink, identified by its name in Flower's ``config.toml``."""

    name: str
    environment: dict[str, str] = field(default_factory=quiet_environment)

    @classmethod
    def of(cls, text: str) -> "Connection":
        """Make a connection from a SuperLink's name or a folder written by `dpfact centre init`."""
        home = Path(text).expanduser().absolute() / "flwr"
        if (home / "config.toml").exists():
            return cls("centre", {**quiet_environment(), "FLWR_HOME": str(home)})
        if os.sep in text:
            raise SettingsError(f"{text}: is not a folder that dpfact centre init wrote")
        return cls(text)

    def command(self, words: str) -> str:
        """Return the shell command that calls ``flwr`` with `words` and this SuperLink's name."""
        home = self.environment.get("FLWR_HOME")
        return f"FLWR_HOME={home} " * bool(home) + f"flwr {words} {self.name}"

    def register(self, public_key: Path, name: str) -> str:
        """Register a SuperNode's key under a site's name. Return the node id."""
        answer = self._ask("supernode", "register", str(public_key), self.name, "--name", name)
        if not answer.get("node-id"):
            reason = _reason(answer)
            if "in use" in reason:
                reason += " Its hospital is admitted already, or was removed and needs a new key"
            raise SettingsError(f"{name} was not registered: {reason}")
        return str(answer["node-id"])

    def submit(self, app: Path, config: Mapping[str, Scalar], federation_config: str = "") -> str:
        """Submit a run of a Flower App and return the number of the run.

        A failed request is not repeated. If the SuperLink has already accepted the run, a second
        request would charge the sites twice.
        """
        words = ["run", str(app), self.name, "--run-config", _in_flowers_syntax(config)]
        if federation_config:
            words += ["--federation-config", federation_config]
        answer = self._ask(*words)
        if not answer.get("run-id"):
            raise RunFailedError(
                f"it is unknown whether the run was started: {_reason(answer)}; look with "
                f"{self.command('ls')} before you submit it again"
            )
        return str(answer["run-id"])

    def follow(self, run: str, log: int | None = None) -> dict[str, Any]:
        """Stream a run's log until the run ends. Return the run's last state from `flwr ls`.

        `log` is the file descriptor to write to (default: this process's output). The status is
        `UNKNOWN` if the SuperLink is silent for five minutes. Warn if the run stays pending.
        """
        command, updated = [tool("flwr"), "log", run, self.name, "--stream"], time.monotonic()
        with supervised(command, env=self.environment, stdout=log, stderr=log) as process:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECONDS)
                state = self.state(run)
                status = str(state.get("status", ""))
                if status.startswith(_FINISHED):
                    return state
                if status == "pending" and process.poll() is None:
                    sys.stderr.write(
                        f"warning: run {run} has not begun yet: the SuperLink's log says why; a "
                        "machine that takes 30 s to start a process never begins one. "
                        f"To end the run: {self.command(f'stop {run}')}\n"
                    )
                if state:
                    updated = time.monotonic()
                elif time.monotonic() - updated > _GONE_SECONDS:
                    sys.stderr.write(
                        f"the SuperLink ({self.name}) has not reported on run {run} for "
                        f"{_GONE_SECONDS:g} s: check it with {self.command('ls')}; a run that "
                        "ended early continues with resume=true\n"
                    )
                    return {"status": UNKNOWN}
                time.sleep(_POLL_SECONDS)

    def state(self, run: str) -> dict[str, Any]:
        """Return the run's state in Flower, or {} if the SuperLink does not answer."""
        runs = self._ask("ls", self.name, "--run-id", run).get("runs") or [{}]
        return dict(runs[0])

    def _ask(self, *words: str) -> dict[str, Any]:
        """Return a Flower command's output. If the command failed, return an `error-message`."""
        command = [tool("flwr"), *words, "--format", "json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, check=False)
        text = done.stdout.decode(errors="replace")
        try:
            answer: dict[str, Any] = json.loads(text[text.index("{") :])
        except ValueError:
            error = done.stderr.decode(errors="replace") or text
            return {"error-message": error.strip()[-500:]}
        return answer


def _reason(answer: Mapping[str, Any]) -> str:
    return " ".join(str(answer.get("error-message") or "flwr gave no reason").split())


@contextmanager
def followed(report_progress: ProgressCallback, show: Callable[[str], None]) -> Iterator[int]:
    """Yield a file descriptor for a run's Flower log, and show the log's progress and warnings.

    If the run fails, show the last lines of the log, whatever their level.
    """
    read, write = os.pipe()
    last: deque[str] = deque(maxlen=200)

    def follow() -> None:
        with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
            for line in map(str.rstrip, lines):
                last.append(line)
                if match := _ROUND.search(line):
                    number, rounds = map(int, match.groups())
                    report_progress("rounds", (number - 1) / rounds)
                elif MEASURING_LINE in line:
                    report_progress("rounds", 1.0)
                    report_progress("measuring", 0.0)
                elif _WORTH_SHOWING.search(line) and not any(noise in line for noise in _NOISE):
                    show(line)

    following = Thread(target=follow)
    following.start()
    try:
        try:
            yield write
        finally:
            os.close(write)
            following.join()
    except RunFailedError:
        for line in last:
            show(line)
        raise


@dataclass(frozen=True, kw_only=True)
class SuperLink(Connection):
    """A running SuperLink. The SuperLink's Flower home contains the log and the database."""

    address: str
    process: subprocess.Popen[bytes]

    def run(
        self,
        app: Path,
        config: Mapping[str, Scalar],
        *,
        federation_config: str = "",
        log: int | None = None,
    ) -> None:
        """Run a Flower App to completion. `log` is the log's descriptor, as in `follow`."""
        status = self.follow(self.submit(app, config, federation_config), log).get("status")
        if status != COMPLETED:
            raise RunFailedError(f"the run ended as {status!r}; its log is above")


@contextmanager
def local_superlink(home: Path, *, simulation: bool) -> Iterator[SuperLink]:
    """Start a SuperLink on a free loopback port.

    Ray runs the clients if `simulation` is true, and SuperNodes run the clients if it is false. The
    SuperLink and its helpers stop when the context ends.
    """
    home = home.absolute()
    private_folder(home)
    port = free_port()
    address = f"127.0.0.1:{port}"
    connections = {"default": _CONNECTION, _CONNECTION: {"address": address, "insecure": True}}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": connections}), encoding="utf-8")
    command = [
        tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port),
        "--database", str(home / "state.db"), "--isolation", "subprocess",
        "--disable-runtime-dependency-installation",
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
        yield SuperLink(_CONNECTION, environment, address=address, process=process)


@contextmanager
def local_supernode(
    superlink: SuperLink,
    config: Mapping[str, Scalar],
    log: Path,
    *,
    security: Sequence[str] = ("--insecure",),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a site's SuperNode on this machine, with `config` as the node config.

    The SuperNode runs any app that it receives, so do not use this function at a hospital.
    """
    command = [
        tool("flower-supernode"), *security, "--superlink", superlink.address,
        "--port", str(free_port()), "--node-config", _in_flowers_syntax(config),
    ]  # fmt: skip
    with (
        log.open("wb") as file,
        supervised(command, env=superlink.environment, stdout=file, stderr=file) as process,
    ):
        yield process


def free_port() -> int:
    """Return a free loopback port that no earlier call in this process has returned."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    if port in _USED_PORTS:  # the process that is to listen on it may not have started yet
        return free_port()
    _USED_PORTS.add(port)
    return port
