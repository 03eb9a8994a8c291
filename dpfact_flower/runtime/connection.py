"""Submit a run to a SuperLink in Flower's configuration, follow the run, and get its outcome.

`flwr run` exits with 0 even if the run fails, and the run's log ends when the ServerApp is killed,
a minute before the SuperLink notices. So this module polls the SuperLink for the run's outcome.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from dpfact_flower.errors import DPFactError, MissingDependencyError, SettingsError
from dpfact_flower.machine.flower import QUIET
from dpfact_flower.runtime.supervisor import supervised
from dpfact_flower.settings import Scalar

COMPLETED = "finished:completed"
_FINISHED = "finished"
"""Prefix of the status that Flower gives to every ended run."""
_POLL_SECONDS = 3.0
_GONE_SECONDS = 300.0
"""Time limit for a SuperLink's restart. Afterwards, a run's outcome counts as unknown."""
_LOOK_SECONDS = 120.0
"""Interval between requests for a run's state, since Flower's log stream has no time limit."""
_logger = logging.getLogger(__name__)


class RunFailedError(DPFactError, RuntimeError):
    """Error for a run that Flower did not complete."""

    code = "run-failed"


class RunUnknownError(DPFactError, RuntimeError):
    """Error for a run whose state the SuperLink no longer reports."""

    code = "run-unknown"


def quiet_environment() -> dict[str, str]:
    """Return the environment for Flower's commands, with their helpers in the PATH."""
    path = filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH")))
    environment = {**os.environ, **QUIET, "PATH": os.pathsep.join(path)}
    for coloured in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # Jupyter sets these for colours
        environment.pop(coloured, None)
    return environment


def tool(name: str) -> str:
    """Return the path of a command in this environment."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise MissingDependencyError(f"{name}: not found beside {sys.executable}; install flwr")
    return str(path)


def _toml(value: Scalar) -> str:
    """Return a scalar in the syntax of `flwr run --run-config`."""
    if isinstance(value, str) and any(c in value for c in "\"'\n\\"):
        raise SettingsError(f"run config: {value!r} holds a quote, backslash or line break")
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


@dataclass(frozen=True)
class Connection:
    """A SuperLink, identified by its name in Flower's ``config.toml``."""

    name: str
    environment: dict[str, str] = field(default_factory=quiet_environment)
    warn: Callable[[str], object] = _logger.warning

    @classmethod
    def of(cls, text: str, warn: Callable[[str], object] = _logger.warning) -> Connection:
        """Make a connection from a name, or from the folder that `dpfact centre init` wrote."""
        home = Path(text).expanduser().absolute() / "flwr"
        if not (home / "config.toml").exists():
            return cls(text, warn=warn)
        return cls("centre", {**quiet_environment(), "FLWR_HOME": str(home)}, warn)

    def register(self, public_key: Path, name: str) -> str:
        """Register a SuperNode's key under a site's name. Return the node id."""
        answer = self._ask("supernode", "register", str(public_key), self.name, "--name", name)
        if not answer.get("node-id"):
            raise SettingsError(f"{name} was not registered: {_reason(answer)}")
        return str(answer["node-id"])

    def submit(self, app: Path, config: Mapping[str, Scalar], federation_config: str = "") -> str:
        """Submit a run of a Flower App and return the number of the run.

        A failed request is not repeated: the SuperLink may have accepted the run before failing,
        and sites would be charged for two runs.
        """
        settings = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
        words = ["run", str(app), self.name, "--run-config", settings]
        if federation_config:
            words += ["--federation-config", federation_config]
        answer = self._ask(*words)
        if not answer.get("run-id"):
            raise RunFailedError(
                f"it is unknown whether the run was started: {_reason(answer)}; look with "
                f"flwr ls {self.name} before you submit it again"
            )
        return str(answer["run-id"])

    def follow(self, run: str, log: int | None = None) -> dict[str, Any]:
        """Stream a run's log until the run ends. Return the last state from `flwr ls`.

        `log` is a file descriptor for the log, by default this process's output. Raise a
        RunUnknownError if the SuperLink does not report the run for five minutes. Warn if the run
        does not begin, because Flower gives no such warning.
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
                    self.warn(
                        f"run {run} has not begun yet: the SuperLink's log says why; a machine "
                        "that takes 30 s to start a process never begins one. "
                        f"flwr stop {run} {self.name} ends it"
                    )
                if state:
                    updated = time.monotonic()
                elif time.monotonic() - updated > _GONE_SECONDS:
                    raise RunUnknownError(
                        f"the SuperLink ({self.name}) has not reported on run {run} for "
                        f"{_GONE_SECONDS:g} s: flwr ls {self.name}; a run that ended early "
                        "continues with resume=true"
                    )
                time.sleep(_POLL_SECONDS)

    def state(self, run: str) -> dict[str, Any]:
        """Return the run's state in Flower; empty if the SuperLink does not answer."""
        runs = self._ask("ls", self.name, "--run-id", run).get("runs") or [{}]
        return dict(runs[0])

    def _ask(self, *words: str) -> dict[str, Any]:
        """Return the output of a Flower command, or an `error-message` if the command failed."""
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
