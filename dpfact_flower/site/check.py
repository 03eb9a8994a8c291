"""Checks of a hospital's machine: only the installed code may answer requests.

Each function with the decorator `@check` returns one text for each fault, with its remedy. The
checks change nothing. Only root can see the files and processes of both users.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from dpfact_flower.data.site_data import open_site
from dpfact_flower.errors import DPFactError
from dpfact_flower.machine import access
from dpfact_flower.machine.access import changeable, changeable_within, not_private, user_name
from dpfact_flower.machine.flower import KNOWN, QUIET, version_faults
from dpfact_flower.machine.processes import Process, listeners, processes
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.config import check_choices, check_data_site, read_node_config
from dpfact_flower.site.disk_reservation import largest_run
from dpfact_flower.site.lockout import check_attempts, rolled_back_faults
from dpfact_flower.site.metrics import answering_seconds
from dpfact_flower.site.secure import keyring_of
from dpfact_flower.site.server_check import server_faults
from dpfact_flower.site.store import has_jobs

MACHINE_CODE = ".machine-code"
"""Folder for numba's cache, in the state folder."""
FLOWERS_OWN = (
    "flower-superexec", "flwr-clientapp", "flwr-agentapp", "flwr-connector", "flwr-model",
    "flwr-serverapp", "flwr-simulation",
)  # fmt: skip
"""Flower's commands that run any app that the SuperLink sends."""
_OURS, _SUPERNODE = ("dpfact", "dpfact_flower"), "flower-supernode"
_KEY = "--auth-supernode-private-key"
_LEAST_ROOM = 2**28
"""Bytes kept free for the ledger rows and last requests of other runs."""
_LONG_SECONDS = 3600.0
_SHOWN = 3
"""Largest number of files to name if other users can change an installation."""


class Place:
    """The machine to check: the executor's settings and the SuperNode's private key."""

    def __init__(self, config: Path, key: Path) -> None:
        self.config, self.key = config, key
        self.settings = SiteSettings.from_config(read_node_config(config))
        self.data, self.state = Path(self.settings.data_path), Path(self.settings.state_dir)
        self.executor_user = self.data.lstat().st_uid  # the data's owner runs the executor
        self.node_user = key.lstat().st_uid  # the key's owner runs the SuperNode
        self.processes = processes()
        answering = [each for each in self.processes if "answer" in each.words]  # not this process
        self.executor = _running(answering, "--config", config, *_OURS)
        self.supernode = _running(self.processes, _KEY, key, *_OURS, _SUPERNODE)

    def site_folder(self) -> Path:
        """Return the folder of the site's ledger."""
        return self.state / (self.settings.site or open_site(self.data).name)


def _running(candidates: Iterable[Process], option: str, path: Path, *names: str) -> Process | None:
    path = path.resolve()
    running = (each for each in candidates if each.runs(*names) and each.path(option) == path)
    return next(running, None)


@dataclass(frozen=True)
class Finding:
    """The result of a check: its title, and each fault with its remedy."""

    check: str
    faults: tuple[str, ...]


Check = Callable[[Place], Iterable[str]]
CHECKS: list[tuple[str, Check]] = []


def check(title: str) -> Callable[[Check], Check]:
    """Add a function to `CHECKS`; `title` states the condition that should hold."""

    def add(function: Check) -> Check:
        CHECKS.append((title, function))
        return function

    return add


def check_site(config: Path, key: Path, *, started: bool = True) -> list[Finding]:
    """Run every check, or only those that work before the processes are `started`.

    If the settings or the key cannot be read, the only finding is this fault.
    """
    places: list[Place] = []

    def open_place() -> Iterable[str]:
        places.append(Place(config, key))
        return ()

    findings = [Finding("the settings, the data and the key are there", _faults(open_place))]
    for title, run in CHECKS if places else ():
        if started or run in _BEFORE_THE_START:
            findings.append(Finding(title, _faults(partial(run, places[0]))))
    return findings


def _faults(run_check: Callable[[], Iterable[str]]) -> tuple[str, ...]:
    try:
        return tuple(run_check())
    except PermissionError as error:
        return (f"{error.filename} is hidden from you: run this check as root",)
    except (DPFactError, OSError) as error:
        return (str(error),)


@check(f"Flower {' or '.join(KNOWN)} is installed")
def _flower(_: Place) -> list[str]:
    return version_faults()


@check("the settings are complete")
def _complete(place: Place) -> Iterable[str]:
    check_choices(place.settings)
    return ()


@check("the data file opens, and is this site's")
def _opens(place: Place) -> Iterable[str]:
    check_data_site(open_site(place.data).name, place.settings)
    return ()


@check("the key and the data belong to two users")
def _two_users(place: Place) -> Iterator[str]:
    if place.executor_user == place.node_user:
        both = f"{user_name(place.node_user)} has both {place.key} and {place.data}"
        yield f"{both}: give one of them to a user of its own"
    if 0 in {place.executor_user, place.node_user}:
        yield "root owns the key or the data: give them to users of their own"


@check("the data is its owner's alone")
def _data(place: Place) -> list[str]:
    return not_private(place.data, place.executor_user)


@check("the key is its owner's alone")
def _key(place: Place) -> list[str]:
    return not_private(place.key, place.node_user)


@check("the keys of secure sums are whole, and its own is its owner's alone")
def _secure_keys(place: Place) -> list[str]:
    settings = place.settings
    if not (settings.secure_key or settings.secure_peers):
        return []
    keyring_of(settings, place.site_folder().name)
    peers = changeable(Path(settings.secure_peers), {place.executor_user})
    return not_private(Path(settings.secure_key), place.executor_user) + peers


@check("nobody else can change the settings")
def _config(place: Place) -> list[str]:
    return changeable(place.config, {place.executor_user})


@check("each reply leaves at its time")
def _time(place: Place) -> Iterator[str]:
    if not place.settings.reply_after and place.settings.allow_privacy != "none":
        yield f"the server can see how long a round takes: set reply-after in {place.config}"


@check("the state folder is the executor's alone")
def _state(place: Place) -> list[str]:
    return not_private(place.state, place.executor_user)


@check("the ledger is whole")
def _ledger(place: Place) -> list[str]:
    folder = place.site_folder()
    if faults := rolled_back_faults(folder):
        return faults
    journal = folder / f"{LEDGER}-journal"
    if not (folder / LEDGER).exists():
        return [] if not has_jobs(folder) else [f"{folder} has runs and no ledger: restore it"]
    if journal.exists():  # a charge is being written, or was interrupted
        return [f"{journal} is there: if it stays, run dpfact ledger verify {folder}"]
    with Ledger(folder, create=False) as ledger:
        return ledger.verify()


@check("the disk has space, and few rounds in a row have failed")
def _room(place: Place) -> Iterator[str]:
    free, least = shutil.disk_usage(place.state).free, _LEAST_ROOM
    with suppress(DPFactError):  # another check reports faults of the data file
        least += largest_run(open_site(place.data).vocabularies, place.settings)
    if free < least:
        has = f"{place.state} has {free // 2**20} MiB left, but needs {least // 2**20}"
        yield f"{has}: free disk space, or lower max-rank"
    check_attempts(place.site_folder())


@check("nobody else can change the installation")
def _installation(place: Place) -> list[str]:
    faults = changeable(Path(sys.executable), {place.executor_user})
    for folder in {Path(sysconfig.get_path("purelib")), Path(__file__).parents[1]}:
        faults += islice(changeable_within(folder, {place.executor_user}), _SHOWN)
    return list(dict.fromkeys(faults))


@check("nobody else can change the machine code")
def _machine_code(place: Place) -> Iterable[str]:
    environment = (place.executor.environment if place.executor else None) or {}
    folder = Path(environment.get("NUMBA_CACHE_DIR") or place.state / MACHINE_CODE)
    if not folder.exists():  # it will be created for its owner alone
        return []
    return islice(changeable_within(folder, {place.executor_user}), _SHOWN)


@check("the SuperNode leaves the work to the executor")
def _supernode(place: Place) -> Iterator[str]:
    node = place.supernode
    if node is None:
        yield f"no SuperNode with {_KEY} {place.key}: start it"
        return
    yield from _runs_as(node, place.node_user, "the SuperNode")
    if node.option("--isolation") != "process":
        yield "the SuperNode starts what the SuperLink sends: start it with --isolation process"
    if node.runs(_SUPERNODE):
        yield "the SuperNode is not restarted once it gives up: start it with dpfact site connect"
    if node.option("--node-config") is not None:
        yield "the SuperNode's --node-config is readable by all, and does not count: leave it out"
    yield from _secret(node, "--superexec-auth-secret-file", place.node_user)


@check("the executor is this package's")
def _executor(place: Place) -> Iterator[str]:
    executor = place.executor
    if executor is None:
        yield f"no dpfact site answer with --config {place.config}: start it"
        return
    yield from _runs_as(executor, place.executor_user, "the executor")
    if (age := answering_seconds(place.state)) > _LONG_SECONDS:
        yield f"one message has taken {age:.0f} s: its process may hang; the executor will end it"
    yield from _secret(executor, "--secret", place.executor_user)


@check("the executor answers the SuperNode's user, and nobody else listens there")
def _port(place: Place) -> Iterator[str]:
    """Check the port, because the executor answers any process that listens there."""
    executor = place.executor
    if executor is None:
        yield "the executor is not running, so its port cannot be checked: start it"
        return
    node, given = user_name(place.node_user), executor.option("--node-user")
    if (executor.uid if given is None else access.user_id(given)) != place.node_user:
        yield f"the executor answers another user's SuperNode: give it --node-user {node}"
    host, port = executor.option("--host") or "127.0.0.1", int(executor.option("--port") or 9094)
    listening = listeners(host, port)
    if listening is None:
        yield f"cannot see here which process listens at {host}:{port}: only the SuperNode may"
    for uid in {listener.uid for listener in listening or ()} - {place.node_user}:
        place_of = f"at {host}:{port}, where the executor asks"
        yield f"{user_name(uid)} listens {place_of}: end that, and start the SuperNode as {node}"


@check("no executor of Flower's own runs")
def _nothing_of_flowers(place: Place) -> Iterator[str]:
    for process in place.processes:
        if process.uid in {place.node_user, place.executor_user} and process.runs(*FLOWERS_OWN):
            command = " ".join(process.words[:2])
            yield (
                f"process {process.pid} of {user_name(process.uid)} ({command}) runs what the "
                "SuperLink sends: end it; dpfact site answer replaces it"
            )


@check("the centre answers with its certificate, and the clocks agree")
def _server(place: Place) -> list[str]:
    node = place.supernode
    if node is None:
        return ["the SuperNode is not running, so its connection cannot be checked: start it"]
    address, certificates = node.option("--superlink"), node.path("--root-certificates")
    if address is None or certificates is None:
        return ["the SuperNode speaks without TLS: give it --superlink and --root-certificates"]
    return server_faults(address, certificates)


@check("telemetry and update checks are off")
def _quiet(place: Place) -> list[str]:
    node = place.supernode
    if node is None:
        return ["the SuperNode is not running, so its environment cannot be checked: start it"]
    if node.environment is None:
        return ["the SuperNode's environment is hidden from you: run this check as root"]
    return [
        f"the SuperNode reports to Flower's makers: start it with {key}={value}"
        for key, value in QUIET.items()
        if key.startswith("FLWR_") and node.environment.get(key) != value  # no Ray runs here
    ]


@check("the executor has no network")
def _no_network(place: Place) -> Iterator[str]:
    executor = place.executor
    if executor is None:
        yield "the executor is not running, so its network cannot be seen: start it"
    elif not (_interfaces(executor.pid) <= {"lo"} or _denied(executor.pid)):
        wanted = "IPAddressDeny=any and IPAddressAllow=127.0.0.1 in its systemd unit"
        yield f"the executor may reach more than this machine: {wanted}"


def _runs_as(process: Process, uid: int, name: str) -> list[str]:
    if process.uid == uid:
        return []
    actual, expected = user_name(process.uid), user_name(uid)
    return [f"{name} runs as {actual}: start it as {expected}"]


def _secret(process: Process, option: str, uid: int) -> list[str]:
    path = process.path(option)
    if path is None:
        return [f"any user of this machine can take the SuperNode's messages: give it {option}"]
    return not_private(path, uid)


def _interfaces(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def _denied(pid: int) -> bool:
    """Return whether the systemd unit of a process allows connections to this machine only."""
    unit = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("/")[2]
    if not unit.endswith(".service"):
        return False
    command = ["systemctl", "show", "--value", "--property=IPAddressDeny", unit]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return {"0.0.0.0/0", "::/0"} <= set(shown.split())


_BEFORE_THE_START = {_flower, _complete, _opens, _time, _room, _secure_keys}
