"""Whether a hospital's machine is set up so that the installed code answers, and nothing else.

One small function a check: it gives what is wrong, each in words that say what to do, and nothing
where all is well. `CHECKS` is the list; another check is another function in it. They look on and
change nothing. Only root sees everything, files and processes of both users.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from dpfact_flower.data.site_data import open_site
from dpfact_flower.errors import DPFactError
from dpfact_flower.machine.access import (
    changeable,
    changeable_within,
    not_private,
    user_id,
    user_name,
)
from dpfact_flower.machine.flower import KNOWN, QUIET, version_faults
from dpfact_flower.machine.processes import Process, listeners, processes
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.config import check_choices, check_data_site, read_node_config
from dpfact_flower.site.disk_reservation import largest_run
from dpfact_flower.site.lockout import check_attempts, rolled_back_faults
from dpfact_flower.site.metrics import answering_seconds
from dpfact_flower.site.server_check import server_faults
from dpfact_flower.site.store import has_jobs

MACHINE_CODE = ".machine-code"
"""Folder for numba's cache, in the state folder."""
FLOWERS_OWN = (
    "flower-superexec", "flwr-clientapp", "flwr-agentapp", "flwr-connector", "flwr-model",
    "flwr-serverapp", "flwr-simulation",
)  # fmt: skip
"""Commands of Flower that start, or are, an app of the SuperLink's choice."""
_OURS, _SUPERNODE = ("dpfact", "dpfact_flower"), "flower-supernode"
_LEAST_ROOM = 2**28
"""Bytes beside what a round asks for: other runs' ledger rows and endings."""
_LONG_SECONDS = 3600.0
_SHOWN = 3
"""Files named of an installation that others can change; there may be thousands."""


@dataclass(frozen=True)
class Place:
    """What is checked.

    Attributes
    ----------
    config : Path
        The executor's settings.
    key : Path
        The SuperNode's private key.
    """

    config: Path
    key: Path

    @cached_property
    def settings(self) -> SiteSettings:
        """The hospital's settings; errors as `read_node_config` has them."""
        return SiteSettings.from_config(read_node_config(self.config))

    @cached_property
    def data(self) -> Path:
        """The patients' file."""
        return Path(self.settings.data_path)

    @cached_property
    def site_folder(self) -> Path:
        """Where the site keeps its ledger."""
        name = self.settings.site or open_site(self.data).name
        return Path(self.settings.state_dir) / name

    @cached_property
    def executor_user(self) -> int:
        """Who has the data, and so answers."""
        return self.data.lstat().st_uid

    @cached_property
    def node_user(self) -> int:
        """Who has the key, and so the network."""
        return self.key.lstat().st_uid

    @cached_property
    def processes(self) -> list[Process]:
        """What runs on this machine."""
        return processes()

    @cached_property
    def supernode(self) -> Process | None:
        """The SuperNode that has the key."""
        return self._with("--auth-supernode-private-key", self.key, *_OURS, _SUPERNODE)

    @cached_property
    def executor(self) -> Process | None:
        """The executor that has the settings."""
        # Not the check itself, which has them too.
        return self._with("--config", self.config, *_OURS, word="answer")

    def _with(self, option: str, path: Path, *names: str, word: str = "") -> Process | None:
        path = path.resolve()
        found = (e for e in self.processes if e.runs(*names) and (not word or word in e.words))
        return next((each for each in found if each.path(option) == path), None)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes
    ----------
    check : str
        What should hold.
    faults : tuple of str
        What does not, and what to do; empty where all is well.
    """

    check: str
    faults: tuple[str, ...]


def check_site(config: Path, key: Path) -> list[Finding]:
    """Run every check; where the settings or the key cannot be read, that one alone."""
    place = Place(config, key)
    first = _run(place, "the settings, the data and the key are there", _is_there)
    if first.faults:
        return [first]
    return [first, *(_run(place, words, check) for words, check in CHECKS)]


def _run(place: Place, words: str, check: Callable[[Place], list[str]]) -> Finding:
    try:
        return Finding(words, tuple(check(place)))
    except PermissionError as error:
        return Finding(words, (f"{error.filename} is hidden from you: run this check as root",))
    except (DPFactError, OSError) as error:
        return Finding(words, (str(error),))


def _is_there(place: Place) -> list[str]:
    _ = place.executor_user, place.node_user
    return []


def _complete(place: Place) -> list[str]:
    check_choices(place.settings)
    return []


def _opens(place: Place) -> list[str]:
    check_data_site(open_site(place.data).name, place.settings)
    return []


def _ledger(place: Place) -> list[str]:
    folder = place.site_folder
    if faults := rolled_back_faults(folder):
        return faults
    journal = folder / f"{LEDGER}-journal"
    if not (folder / LEDGER).exists():
        return [] if not has_jobs(folder) else [f"{folder} has runs and no ledger: restore it"]
    if journal.exists():  # of a charge that is being written, or was cut off
        return [f"{journal} is there: if it stays, run dpfact ledger verify {folder}"]
    with Ledger(folder, create=False) as ledger:
        return ledger.verify()


def _room(place: Place) -> list[str]:
    state = Path(place.settings.state_dir)
    free = shutil.disk_usage(state).free
    least = _LEAST_ROOM
    with suppress(DPFactError):  # a check of its own says what is wrong with the data file
        sizes = [len(vocabulary) for vocabulary in open_site(place.data).vocabularies]
        least += largest_run(sizes, place.settings.max_rank)
    faults = []
    if free < least:
        faults.append(
            f"{state} has {free // 2**20} MiB left, {least // 2**20} are needed: make room, or "
            "lower max-rank"
        )
    check_attempts(place.site_folder)
    return faults


def _centre(place: Place) -> list[str]:
    node = place.supernode
    if node is None:
        return ["the SuperNode is not running, so its way to the centre cannot be seen: start it"]
    address, certificates = node.option("--superlink"), node.path("--root-certificates")
    if address is None or certificates is None:
        return ["the SuperNode speaks without TLS: give it --superlink and --root-certificates"]
    return server_faults(address, certificates)


def _flower(_: Place) -> list[str]:
    return version_faults()


def _two_users(place: Place) -> list[str]:
    faults = []
    if place.executor_user == place.node_user:
        faults.append(
            f"{user_name(place.node_user)} has both {place.key} and {place.data}: "
            "give one of them to a user of its own"
        )
    if 0 in {place.executor_user, place.node_user}:
        faults.append("root owns the key or the data: give them to users of their own")
    return faults


def _data(place: Place) -> list[str]:
    return not_private(place.data, place.executor_user)


def _key(place: Place) -> list[str]:
    return not_private(place.key, place.node_user)


def _config(place: Place) -> list[str]:
    return changeable(place.config, {place.executor_user})


def _state(place: Place) -> list[str]:
    return not_private(Path(place.settings.state_dir), place.executor_user)


def _installation(place: Place) -> list[str]:
    faults = changeable(Path(sys.executable), {place.executor_user})
    package = Path(__file__).parents[1]
    for folder in {Path(sysconfig.get_path("purelib")), package}:
        faults += islice(changeable_within(folder, {place.executor_user}), _SHOWN)
    return list(dict.fromkeys(faults))


def _machine_code(place: Place) -> list[str]:
    environment = (place.executor.environment if place.executor else None) or {}
    own = Path(place.settings.state_dir) / MACHINE_CODE
    folder = Path(environment.get("NUMBA_CACHE_DIR", own) or own)
    if not folder.exists():  # it will be made for its owner alone
        return []
    return list(islice(changeable_within(folder, {place.executor_user}), _SHOWN))


def _time(place: Place) -> list[str]:
    settings = place.settings
    if settings.reply_after or settings.allow_privacy == "none":
        return []
    return [
        "the server can see how long a round takes, which depends on the patients: set reply-after "
        f"in {place.config}"
    ]


def _supernode(place: Place) -> list[str]:
    node = place.supernode
    if node is None:
        return [f"no SuperNode with --auth-supernode-private-key {place.key}: start it"]
    faults = _runs_as(node, place.node_user, "the SuperNode")
    if node.option("--isolation") != "process":
        faults.append(
            "the SuperNode starts what the SuperLink sends: start it with --isolation process"
        )
    if node.runs(_SUPERNODE):
        faults.append(
            "the SuperNode stays behind where it gives up, offline: start it as dpfact site connect"
        )
    if node.option("--node-config") is not None:
        faults.append(
            f"the SuperNode's --node-config is readable by all: leave it out, {place.config} counts"
        )
    return faults + _secret(node, "--superexec-auth-secret-file", place.node_user)


def _executor(place: Place) -> list[str]:
    executor = place.executor
    if executor is None:
        return [f"no dpfact site answer with --config {place.config}: start it"]
    faults = _runs_as(executor, place.executor_user, "the executor")
    if (age := answering_seconds(Path(place.settings.state_dir))) > _LONG_SECONDS:
        faults.append(
            f"a message has been answered for {age:.0f} s: its process may hang; the executor ends "
            "it a minute after its round, and its log says so"
        )
    return faults + _secret(executor, "--secret", place.executor_user)


def _port(place: Place) -> list[str]:
    """Whoever listens where the executor asks is answered like the SuperNode."""
    executor = place.executor
    if executor is None:
        return ["the executor is not running, so where it asks cannot be seen: start it"]
    node, faults = user_name(place.node_user), []
    answered = executor.option("--node-user")
    if (executor.uid if answered is None else user_id(answered)) != place.node_user:
        faults.append(f"the executor answers another user's SuperNode: give it --node-user {node}")
    host, port = executor.option("--host") or "127.0.0.1", int(executor.option("--port") or 9094)
    found = listeners(host, port)
    if found is None:
        return [*faults, f"who listens at {host}:{port} cannot be seen here: nobody else may"]
    others = {user_name(each.uid) for each in found if each.uid != place.node_user}
    return faults + [
        f"{other} listens at {host}:{port}, where the executor asks: end that, and start the "
        f"SuperNode as {node}"
        for other in sorted(others)
    ]


def _runs_as(process: Process, uid: int, name: str) -> list[str]:
    if process.uid == uid:
        return []
    found, wanted = user_name(process.uid), user_name(uid)
    return [f"{name} runs as {found}: start it as {wanted}"]


def _secret(process: Process, option: str, uid: int) -> list[str]:
    path = process.path(option)
    if path is None:
        return [f"whoever can log in here can take the SuperNode's messages: give it {option}"]
    return not_private(path, uid)


def _nothing_of_flowers(place: Place) -> list[str]:
    return [
        f"process {each.pid} of {user_name(each.uid)} runs what the SuperLink sends "
        f"({' '.join(each.words[:2])}): end it; dpfact site answer stands in for it"
        for each in place.processes
        if each.uid in {place.node_user, place.executor_user} and each.runs(*FLOWERS_OWN)
    ]


def _quiet(place: Place) -> list[str]:
    node = place.supernode
    if node is None:
        return ["the SuperNode is not running, so its environment cannot be seen: start it"]
    if node.environment is None:
        return ["the SuperNode's environment is hidden from you: run this check as root"]
    return [
        f"the SuperNode reports to Flower's makers: start it with {key}={value}"
        for key, value in QUIET.items()
        if key.startswith("FLWR_") and node.environment.get(key) != value  # no Ray runs here
    ]


def _no_network(place: Place) -> list[str]:
    executor = place.executor
    if executor is None:
        return ["the executor is not running, so its network cannot be seen: start it"]
    if _interfaces(executor.pid) <= {"lo"} or _denied(executor.pid):
        return []
    return [
        "the executor may reach more than this machine: IPAddressDeny=any and "
        "IPAddressAllow=127.0.0.1 in its systemd unit"
    ]


def _interfaces(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def _denied(pid: int) -> bool:
    """Whether the systemd unit of a process may reach this machine alone."""
    unit = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("/")[2]
    if not unit.endswith(".service"):
        return False
    command = ["systemctl", "show", "--value", "--property=IPAddressDeny", unit]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return {"0.0.0.0/0", "::/0"} <= set(shown.split())


CHECKS: tuple[tuple[str, Callable[[Place], list[str]]], ...] = (
    (f"Flower {' or '.join(KNOWN)} is installed", _flower),
    ("the settings are complete", _complete),
    ("the data file opens, and is this site's", _opens),
    ("the key and the data belong to two users", _two_users),
    ("the data is its owner's alone", _data),
    ("the key is its owner's alone", _key),
    ("nobody else can change the settings", _config),
    ("each reply leaves at its time", _time),
    ("the state folder is the executor's alone", _state),
    ("the ledger is whole", _ledger),
    ("there is room on the disk, and no row of failures", _room),
    ("nobody else can change the installation", _installation),
    ("nobody else can change the machine code", _machine_code),
    ("the SuperNode leaves the work to the executor", _supernode),
    ("the executor is this package's", _executor),
    ("the executor answers the SuperNode's user, and nobody else listens there", _port),
    ("no executor of Flower's own runs", _nothing_of_flowers),
    ("the centre answers, is who it says, and has the same time", _centre),
    ("telemetry and update checks are off", _quiet),
    ("the executor has no network", _no_network),
)
