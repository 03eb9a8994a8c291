"""Check that only the installed code can answer requests on a hospital's machine.

Run the checks as root, because only root can read the files of both the SuperNode and the executor.
"""

import http.client
import shutil
import ssl
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path

from dpfact_flower.data.site_data import open_site
from dpfact_flower.errors import DPFactError, StateError, naming, shown
from dpfact_flower.machine import files
from dpfact_flower.machine.flower import CLOCK_SECONDS, KNOWN, refuse_unknown_version
from dpfact_flower.machine.parsed import load_npz
from dpfact_flower.machine.processes import Process, listeners, processes
from dpfact_flower.privacy.guarantee import delta_warning
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.runtime.services import HOST, PORT
from dpfact_flower.site import hospital
from dpfact_flower.site.lockout import check_attempts, check_no_note
from dpfact_flower.site.resources import largest_run
from dpfact_flower.site.secure import keyring_of
from dpfact_flower.site.store import has_jobs
from dpfact_flower.tensor.sparse import checked_shape

FLOWERS_OWN = (
    "flower-superexec", "flwr-clientapp", "flwr-agentapp", "flwr-connector", "flwr-model",
    "flwr-serverapp", "flwr-simulation",
)  # fmt: skip
"""Flower commands that run any app sent by the SuperLink."""
_HIDDEN = (Path("/root"), Path("/home"))  # by ProtectHome in the systemd units
_OURS, _SUPERNODE = ("dpfact", "dpfact_flower"), "flower-supernode"
_KEY = "--auth-supernode-private-key"
_LEAST_SPACE = 2**28
"""Free disk space, in bytes, required for the ledger rows and last requests of other runs."""
_CONNECT_SECONDS = 10.0
_SOON = 30 * 86_400
_SHOWN = 3
"""Maximum number of installed files to report as changeable by other users."""


class Machine:
    """A hospital's machine, with the executor's settings file and the SuperNode's key file."""

    def __init__(self, config: Path, key: Path) -> None:
        self.config, self.key = config, key
        self.settings = hospital.read_site_settings(config)
        self.data, self.state = Path(self.settings.data_path), Path(self.settings.state_dir)
        self.executor_user = self.data.lstat().st_uid  # the data's owner runs the executor
        self.node_user = key.lstat().st_uid  # the key's owner runs the SuperNode
        self.processes = processes()

    @property
    def supernode(self) -> Process:
        """The running SuperNode. Raise a `StateError` if no SuperNode is running."""
        for process in self.processes:
            if process.runs(*_OURS, _SUPERNODE) and process.path(_KEY) == self.key.resolve():
                return process
        raise StateError(f"no SuperNode with {_KEY} {self.key} is running: start it")

    @property
    def executor(self) -> Process:
        """The running executor. Raise a `StateError` if no executor is running."""
        for process in self.processes:
            answers = process.runs(*_OURS) and "answer" in process.words
            if answers and process.path("--config") == self.config.resolve():
                return process
        raise StateError(f"no dpfact site answer with --config {self.config} is running: start it")


@dataclass(frozen=True)
class CheckResult:
    """The title of a check, and the faults that the check found, each with its remedy."""

    check: str
    faults: tuple[str, ...]


def check_site(config: Path, key: Path, *, started: bool = True) -> list[CheckResult]:
    """Run all checks. If `started` is false, skip the checks that need running processes.

    If the settings or the key cannot be read, report only one fault and run no other checks.
    """
    opened = "the settings, the data and the key are there"
    try:
        machine = Machine(config, key)
    except (DPFactError, OSError) as error:
        return [CheckResult(opened, (_fault(error),))]
    findings = [CheckResult(opened, ())]
    for title, run_check in CHECKS.items():
        if started or run_check in _BEFORE_START:
            faults: list[str] = []
            try:
                faults.extend(run_check(machine) or ())
            except (DPFactError, OSError) as error:
                faults.append(_fault(error))  # after the faults that were found before the error
            check = title
            if run_check is _ledger and not faults:
                folder = hospital.site_folder(machine.settings)
                if not (folder / LEDGER).exists():
                    check = f"no ledger in {folder} yet, as is right only before the first run"
            findings.append(CheckResult(check, tuple(dict.fromkeys(faults))))
    return findings


def _fault(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{error.filename} is hidden from you: run this check as root"
    return str(error)


def _flower(_: Machine) -> None:
    refuse_unknown_version()


def program_faults(_: Machine | None = None) -> Iterator[str]:
    """Yield the reasons why a systemd unit's user could not run this installation."""
    program = Path(sys.executable)
    needed = (program, program.resolve(), Path(__file__).resolve().parent)
    for part in dict.fromkeys(part for path in needed for part in (path, *path.parents)):
        if part in _HIDDEN or not part.stat().st_mode & stat.S_IXOTH:
            yield f"the units' users cannot use {part}, but need it: install below /opt"


def _settings(machine: Machine) -> None:
    hospital.check_choices(machine.settings)


def _data_file(machine: Machine) -> None:
    hospital.check_data_site(open_site(machine.data).name, machine.settings)
    _n_patients(machine)


def _two_users(machine: Machine) -> Iterator[str]:
    if machine.executor_user == machine.node_user:
        both = f"{files.user_name(machine.node_user)} owns both {machine.key} and {machine.data}"
        yield f"{both}: give one of them to a user of its own"
    if 0 in {machine.executor_user, machine.node_user}:
        yield "root owns the key or the data: give them to users of their own"


def _owners(machine: Machine) -> Iterator[str]:
    yield from files.not_private(machine.data, machine.executor_user)
    yield from files.not_private(machine.state, machine.executor_user)
    yield from files.not_private(machine.key, machine.node_user)


def _secure_keys(machine: Machine) -> Iterator[str]:
    settings = machine.settings
    if settings.secure_key or settings.secure_peers:
        keyring_of(settings, hospital.site_folder(settings).name)
        yield from files.not_private(Path(settings.secure_key), machine.executor_user)
        yield from files.changeable(Path(settings.secure_peers), {machine.executor_user})


def _reply_time(machine: Machine) -> Iterator[str]:
    if not machine.settings.reply_after and machine.settings.allow_privacy != "none":
        yield f"the server can see how long a round takes: set reply-after in {machine.config}"


def _delta(machine: Machine) -> Iterator[str]:
    patients = 0
    with suppress(DPFactError):  # another check reports faults in the data file
        patients = _n_patients(machine)
    warning = delta_warning(machine.settings.budget_delta, patients)
    if warning and machine.settings.max_epsilon:
        yield f"budget-{warning} in {machine.config}, and for the centre's runs"


def _n_patients(machine: Machine) -> int:
    shape = load_npz(machine.data, ("shape",), others=False)["shape"]
    with naming(machine.data):
        return checked_shape(shape)[0]


def _ledger(machine: Machine) -> list[str]:
    folder = hospital.site_folder(machine.settings)
    check_no_note(folder)
    journal = folder / f"{LEDGER}-journal"
    if not (folder / LEDGER).exists():
        return [f"{folder} has runs but no ledger: restore it"] if has_jobs(folder) else []
    if journal.exists():  # a charge is being written, or was interrupted
        return [f"{journal} exists: if it does not go away, run dpfact ledger verify {folder}"]
    with Ledger(folder, create=False) as ledger:
        return ledger.verify()


def _space(machine: Machine) -> Iterator[str]:
    free, least = shutil.disk_usage(machine.state).free, _LEAST_SPACE
    with suppress(DPFactError):  # another check reports faults in the data file
        least += largest_run(open_site(machine.data).vocabularies, machine.settings)
    if free < least:
        has = f"{machine.state} has {free // 2**20} MiB left, but needs {least // 2**20}"
        yield f"{has}: free disk space, or lower max-rank"
    check_attempts(hospital.site_folder(machine.settings))


def _code(machine: Machine) -> Iterator[str]:
    trusted = {machine.executor_user}
    yield from files.changeable(machine.config, trusted)
    yield from files.changeable(Path(sys.executable), trusted)
    machine_code = machine.state / hospital.MACHINE_CODE
    with suppress(StateError):  # another check reports an executor that is not running
        environment = machine.executor.environment or {}
        machine_code = Path(environment.get("NUMBA_CACHE_DIR") or machine_code)
    for folder in (Path(sysconfig.get_path("purelib")), Path(__file__).parents[1], machine_code):
        if folder.exists():
            yield from islice(files.changeable_within(folder, trusted), _SHOWN)


def _supernode(machine: Machine) -> Iterator[str]:
    node = machine.supernode
    yield from _runs_as(node, machine.node_user, "the SuperNode")
    if node.option("--isolation") != "process":
        yield "the SuperNode starts what the SuperLink sends: start it with --isolation process"
    if node.runs(_SUPERNODE):
        yield "nothing restarts the SuperNode if it gives up: start it with dpfact site connect"
    if node.option("--node-config") is not None:
        yield "the SuperNode's --node-config is readable by all users and has no effect: remove it"
    yield from _secret(node, "--superexec-auth-secret-file", machine.node_user)


def _executor(machine: Machine) -> Iterator[str]:
    yield from _runs_as(machine.executor, machine.executor_user, "the executor")
    yield from _secret(machine.executor, "--secret", machine.executor_user)


def _port(machine: Machine) -> Iterator[str]:
    executor = machine.executor
    node, given = files.user_name(machine.node_user), executor.option("--node-user")
    if (executor.uid if given is None else files.user_id(given)) != machine.node_user:
        yield f"the executor answers another user's SuperNode: give it --node-user {node}"
    host, port = executor.option("--host") or HOST, int(executor.option("--port") or PORT)
    listening = listeners(host, port)
    if listening is None:
        yield f"cannot see which process listens at {host}:{port}: it must be the SuperNode"
    for uid in {listener.uid for listener in listening or ()} - {machine.node_user}:
        where = f"at {host}:{port}, where the executor fetches its work"
        yield f"{files.user_name(uid)} listens {where}: ask them, or use another port for {node}"


def _no_flower_executor(machine: Machine) -> Iterator[str]:
    for process in machine.processes:
        if process.uid in {machine.node_user, machine.executor_user} and process.runs(*FLOWERS_OWN):
            command = " ".join(process.words[:2])
            yield (
                f"process {process.pid} of {files.user_name(process.uid)} ({command}) runs what a "
                "SuperLink sends, which this site does not need: ask its owner to stop or move it"
            )


def _server(machine: Machine) -> list[str]:
    unit = machine.key.resolve().parent.parent / "dpfact-node.service"
    try:
        node = machine.supernode
    except StateError:  # a wrong clock ends the SuperNode
        if not unit.exists():
            raise
        node = Process(0, machine.node_user, unit.read_text(errors="replace").split(), None, None)
    address, certificates = node.option("--superlink"), node.path("--root-certificates")
    if address is None or certificates is None:
        return ["the SuperNode connects without TLS: give it --superlink and --root-certificates"]
    return server_faults(address, certificates)


def _no_network(machine: Machine) -> Iterator[str]:
    pid = machine.executor.pid
    if not (_interfaces(pid) <= {"lo"} or _denied(pid)):
        wanted = "IPAddressDeny=any and IPAddressAllow=127.0.0.1 in its systemd unit"
        yield f"the executor may reach more than this machine: {wanted}"


def _runs_as(process: Process, uid: int, name: str) -> Iterator[str]:
    if process.uid != uid:
        yield f"{name} runs as {files.user_name(process.uid)}: start it as {files.user_name(uid)}"


def _secret(process: Process, option: str, uid: int) -> list[str]:
    path = process.path(option)
    if path is None:
        return [f"any user of this machine can take the SuperNode's messages: give it {option}"]
    return files.not_private(path, uid)


def _interfaces(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def _denied(pid: int) -> bool:
    """Return whether a process's systemd unit denies connections to all addresses by default."""
    unit = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("/")[2]
    if not unit.endswith(".service"):
        return False
    command = ["systemctl", "show", "--value", "--property=IPAddressDeny", unit]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return {"0.0.0.0/0", "::/0"} <= set(shown.split())


def server_faults(address: str, certificates: Path) -> list[str]:
    """Return the faults in the connection to a SuperLink, each with its remedy.

    The arguments are the values of the SuperNode's options `--superlink` (HOST:PORT) and
    `--root-certificates`. A request to `/health` shows the server's certificate and current time.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return [f"--superlink {address} is not HOST:PORT"]
    try:
        trusted = ssl.create_default_context(cafile=certificates)
    except (OSError, ssl.SSLError) as error:
        return [f"{certificates} cannot be read ({error}): ask the centre for its ca.crt"]
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=_CONNECT_SECONDS,
                                             context=trusted)  # fmt: skip
    try:
        connection.connect()
        peer = connection.sock.getpeercert() or {}
        connection.request("GET", "/health")
        sent = connection.getresponse().getheader("Date")
    except ssl.SSLCertVerificationError as error:
        return [
            f"{address} is not the centre for {certificates}: {error.verify_message}. Ask the "
            "centre for its ca.crt and its name; somebody may intercept the connection"
        ]
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return [f"{address} does not answer ({error}): check the address, firewall and centre"]
    finally:
        connection.close()
    details = (peer, *trusted.get_ca_certs())
    ends = dict.fromkeys(str(detail["notAfter"]) for detail in details if "notAfter" in detail)
    return _clock_faults(sent) + [
        f"a certificate of {address} expires on {end}: ask the centre for a new one"
        for end in ends
        if ssl.cert_time_to_seconds(end) - time.time() < _SOON
    ]


def _clock_faults(sent: str | None) -> list[str]:
    if not sent:
        return []
    try:
        ahead = time.time() - parsedate_to_datetime(sent).timestamp()
    except (ValueError, OverflowError):
        return [f"the centre sends its time as {shown(sent)}: ask it to correct the header Date"]
    if abs(ahead) <= CLOCK_SECONDS:
        return []
    side = "ahead of" if ahead > 0 else "behind"
    return [f"this clock is {abs(ahead):.0f} s {side} the centre's: use NTP"]


CHECKS: dict[str, Callable[[Machine], Iterable[str] | None]] = {
    f"Flower {' or '.join(KNOWN)} is installed": _flower,
    "the units' users can run the program": program_faults,
    "the settings are complete": _settings,
    "the data file can be read and belongs to this site": _data_file,
    "the key and the data belong to different users": _two_users,
    "only their owners have access to the data, the state folder and the key": _owners,
    "the keys for secure sums are valid, and only the owner has the private key": _secure_keys,
    "each reply leaves at a fixed time": _reply_time,
    "budget-delta suits the number of patients": _delta,
    "the ledger is intact": _ledger,
    "the disk has space, and not too many rounds in a row have failed": _space,
    "no other user can change the settings, the installation or the machine code": _code,
    "the SuperNode leaves the work to the executor": _supernode,
    "the executor is the one from this package": _executor,
    "the executor answers the SuperNode's user, and no other user listens on its port": _port,
    "the two users run none of Flower's own executors": _no_flower_executor,
    "the centre answers with its certificate, and the clocks agree": _server,
    "the executor has no network": _no_network,
}
"""Checks, keyed by condition. Each check raises an error or returns faults with their remedies."""
_BEFORE_START = {
    _flower, program_faults, _settings, _data_file, _secure_keys, _reply_time, _delta, _space,
}  # fmt: skip
"""Checks that work before the processes start."""
