"""A deployment of real processes, which are restarted after they end, as under systemd.

A SuperLink and three hospitals run on loopback with the commands and systemd units of
docs/how-to/deploy.md, with TLS and registered keys. Each hospital has a SuperNode and its own
executor. All processes run as one user, with access to the network. Other tests cover separate
users and a blocked network.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.runtime.installation import write_centre
from dpfact_flower.runtime.superlink import free_port, quiet_environment, tool
from dpfact_flower.runtime.supervisor import supervised
from tests.patience import await_that
from tests.processes import descendant, family_of
from tests.runtime.page import Hospital, Users, centre_command

RESTART_SECONDS = 10
"""RestartSec in the systemd units of docs/how-to/deploy.md."""
CONNECTION = "campaign"
CODE = Path(__file__).parents[2]


class Service:
    """A simulated systemd unit: its process is restarted a few seconds after it ends."""

    def __init__(self, command: list[str], log: Path, **options: object) -> None:
        self._command, self._log, self._options = command, log, options
        self._stack, self._due = ExitStack(), 0.0
        self.starts = 0
        self._start()

    def _start(self) -> None:
        self._stack = ExitStack()
        file = self._stack.enter_context(self._log.open("ab"))
        context = supervised(self._command, stdout=file, stderr=file, **self._options)
        self._process = self._stack.enter_context(context)
        self._due, self.starts = 0.0, self.starts + 1

    @property
    def pid(self) -> int | None:
        """The process that the unit's supervisor started, or None while a restart is due."""
        children = f"/proc/{self._process.pid}/task/{self._process.pid}/children"
        with suppress(OSError):
            # The first child is the command. The others were adopted later.
            for child in map(int, Path(children).read_text().split()):
                return child
        return None

    @property
    def keeper(self) -> int:
        """The supervisor, an ancestor of all the unit's processes."""
        return self._process.pid

    def look(self) -> None:
        """Restart the process if a restart is due."""
        if self._process.poll() is None:
            return
        self._due = self._due or time.monotonic() + RESTART_SECONDS
        if time.monotonic() >= self._due:
            self._stack.close()
            self._start()

    def close(self) -> None:
        """End the process permanently."""
        for each in family_of(self.keeper):  # stopped processes do not end
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
        self._stack.close()


@dataclass
class Deployment:
    """A SuperLink, three hospitals, and everything that the centre needs to submit a run."""

    folder: Path
    hospitals: list[Hospital]
    environment: dict[str, str]
    vocabulary: str
    services: dict[str, Service] = field(default_factory=dict)

    def look(self) -> None:
        """Restart processes that have ended, when a restart is due."""
        for service in self.services.values():
            service.look()

    def find(self, service: str, words: str) -> int | None:
        """Find a unit's process by words in its command line."""
        return descendant(self.services[service].keeper, words)

    def allow(self, mode: str) -> None:
        """Let every hospital take part in a privacy mode, with a separate state folder per mode.

        Executors read their settings again for every message.
        """
        epsilon = 0.0 if mode == "none" else 1e6
        for each in self.hospitals:
            settings = {
                "site": each.name, "data-path": str(each.config.with_suffix(".npz")),
                "state-dir": str(self.state(each, mode).parent), "allow-privacy": mode,
                "max-epsilon": epsilon,
            }  # fmt: skip
            each.config.write_text(tomli_w.dumps(settings))

    def state(self, each: Hospital, mode: str) -> Path:
        """Return the folder with a hospital's state for a privacy mode."""
        return each.folder / "site" / "state" / mode / each.name

    def nodes(self) -> dict[str, str] | None:
        """Return the nodes' status by node number, or None if the SuperLink does not answer."""
        command = [tool("flwr"), "supernode", "list", CONNECTION, "--format", "json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, check=False)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            return None
        if not answer.get("success"):
            return None
        return {node["node-id"]: node["status"] for node in answer["nodes"]}

    def await_all(self) -> None:
        """Wait until all hospitals are online. Until then, restart services that end."""

        def are() -> bool:
            self.look()
            status = list((self.nodes() or {}).values())
            return status.count("online") == len(self.hospitals)

        await_that(are, "every hospital online")


@contextmanager
def deployment(cohort: Cohort, folder: Path) -> Iterator[Deployment]:
    """Set up three hospitals and their centre, and stop all of them afterwards."""
    (folder / "cohort").mkdir()
    cohort.save(folder / "cohort")
    tls, port = folder / "tls", free_port()
    write_centre(tls, "127.0.0.1", port)
    authority = tls / "ca.crt"
    address = f"127.0.0.1:{port}"
    home = folder / "flwr"
    home.mkdir()
    connection = {"address": address, "root-certificates": str(authority)}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {CONNECTION: connection}}))
    me = Users(os.geteuid(), os.geteuid())
    hospitals = [Hospital(site.name, folder / site.name, me, address) for site in cohort.sites]
    environment = {**quiet_environment(), "FLWR_HOME": str(home), "PYTHONPATH": str(CODE)}
    made = Deployment(folder, hospitals, environment, _code_lists(cohort, folder))
    try:
        made.services["centre"] = Service(
            centre_command(tls), folder / "centre.log", cwd=tls,
            env={**environment, "FLWR_HOME": str(tls / "f")},
        )  # fmt: skip
        await_that(lambda: made.look() or made.nodes() is not None, "the SuperLink")
        for each in hospitals:
            each.prepare(authority, folder / "cohort" / f"{each.name}.npz")
            _register(made, each.folder / f"{each.name}.pub", each.name)
            more = {"PYTHONPATH": str(CODE), "NUMBA_CACHE_DIR": "", "OPENBLAS_NUM_THREADS": "1"}
            for unit in ("node", "site"):
                command, options = each.service(f"dpfact-{unit}", more)
                log = each.folder / f"dpfact-{unit}.log"
                made.services[f"{unit} {each.name}"] = Service(command, log, **options)
        yield made
    finally:
        for service in reversed(made.services.values()):
            service.close()


def _code_lists(cohort: Cohort, folder: Path) -> str:
    paths = [folder / f"{each.name}.json" for each in cohort.vocabularies]
    for path, each in zip(paths, cohort.vocabularies, strict=True):
        each.save(path)
    return ",".join(map(str, paths))


def _register(made: Deployment, key: Path, site: str) -> None:
    command = [tool("flwr"), "supernode", "register", str(key), CONNECTION, "--name", site]
    subprocess.run(command, env=made.environment, capture_output=True, check=True)


def submitted(
    made: Deployment,
    out: Path,
    settings: Mapping[str, object],
    bound: float,
    look: Callable[[], None],
) -> tuple[int | None, str]:
    """Submit a run as a person would, and watch all services until the run has ended.

    Return the exit code of `dpfact submit` and its output. The code is None if the command was
    ended after `bound` seconds. `look` is called four times a second.
    """
    command = [tool("dpfact"), "submit", CONNECTION, "--out", str(out), "--json"]
    command += ["--vocabulary", made.vocabulary]
    for key, value in settings.items():
        command += ["-s", f"{key}={value}"]
    log = out.with_suffix(".log")
    options = {"env": made.environment, "cwd": CODE}
    with (
        log.open("ab") as file,
        supervised(command, stdout=file, stderr=file, **options) as process,
    ):
        end = time.monotonic() + bound
        while process.poll() is None and time.monotonic() < end:
            made.look()
            look()
            time.sleep(0.25)
        code = process.poll()
    return code, log.read_text(errors="replace")
