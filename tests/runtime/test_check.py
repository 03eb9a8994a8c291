"""`dpfact site check` finds each fault, and nothing else."""

import json
import os
import socket
import ssl
import sys
import time
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from dpfact_flower.machine.files import user_name
from dpfact_flower.machine.processes import Listener, Process
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.runtime import check, installation
from dpfact_flower.runtime.check import check_site, server_faults
from dpfact_flower.runtime.superlink import free_port
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.resources import largest_run
from tests.commands import dpfact
from tests.patience import Clock
from tests.runtime.certificates import make_certificates

ME = os.geteuid() if hasattr(os, "geteuid") else 0
TWO_USERS = "the key and the data belong to different users"
PROGRAM = "the units' users can run the program"
DATA = "the data file can be read and belongs to this site"
NETWORK = "the executor has no network"
OWNERS = "only their owners have access to the data, the state folder and the key"
CODE = "no other user can change the settings, the installation or the machine code"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs owners and modes")


@pytest.fixture
def running(tmp_path):
    """Return a SuperNode and an executor, which run as the same user."""
    site = f"{tmp_path}/site"
    supernode = [
        "python", "/opt/bin/dpfact", "site", "connect", "--auth-supernode-private-key", "north",
        "--isolation", "process", "--superexec-auth-secret-file", "secret",
        "--superlink", "centre.example:443", "--root-certificates", "ca.crt",
    ]  # fmt: skip
    executor = ["python", "/opt/bin/dpfact", "site", "answer", "--config", f"{site}/north.toml",
                "--secret", f"{site}/secret"]  # fmt: skip
    return [
        Process(1, ME, supernode, {}, tmp_path / "node"),
        Process(2, ME, executor, {}, tmp_path / "site"),
    ]


@pytest.fixture
def place(cohort, tmp_path, monkeypatch, running):
    """Return the folder of a hospital at which every check passes, except that of the two users."""
    node, site = tmp_path / "node", tmp_path / "site"
    for folder in (node, site, site / "state"):
        folder.mkdir(mode=0o700)
    for path in (node / "north", node / "secret", site / "secret"):
        path.touch(mode=0o600)
    replace(cohort.sites[0], name="north").save(site / "north.npz")
    (site / "north.npz").chmod(0o600)
    (site / "north.toml").write_text(
        f'data-path = "{site}/north.npz"\nstate-dir = "{site}/state"\nsite = "north"\n'
        'allow-privacy = "patient"\nmax-epsilon = 4.0\nreply-after = 60.0\n'
    )
    monkeypatch.setattr(check, "processes", lambda: running)
    monkeypatch.setattr(check, "_interfaces", lambda pid: {"lo"})
    monkeypatch.setattr(check, "server_faults", lambda address, certificates: [])
    # The folders of the test and of the developer cannot be changed.
    monkeypatch.setattr(check.files, "changeable_within", lambda folder, uids: iter([]))
    monkeypatch.setattr(check.files, "changeable", lambda path, uids: [])
    monkeypatch.setitem(check.CHECKS, PROGRAM, lambda machine: ())
    return tmp_path


def faults(folder) -> dict[str, tuple[str, ...]]:
    """Return the faults, but not the fault that one user runs both processes."""
    found = check_site(folder / "site" / "north.toml", folder / "node" / "north")
    return {each.check: each.faults for each in found if each.faults and each.check != TWO_USERS}


@pytest.mark.parametrize(("one", "other"), [("key", "peers"), ("peers", "key")])
def test_one_file_of_secure_sums_needs_the_other(place, one, other):
    with (place / "site" / "north.toml").open("a") as config:
        config.write(f'secure-{one} = "/etc/{one}"\n')
    ((fault,),) = faults(place).values()
    assert fault.startswith(f"secure-{other}: must be set")


def test_where_all_is_in_force_nothing_is_to_mend(place):
    assert faults(place) == {}
    found = check_site(place / "site" / "north.toml", place / "node" / "north")
    assert len(found) == len(check.CHECKS) + 1
    (users,) = [each for each in found if each.check == TWO_USERS]
    assert "owns both" in users.faults[0]
    own = place / "site" / "state" / "north"
    titles = {each.check for each in found}
    assert f"no ledger in {own} yet, as is right only before the first run" in titles
    assert LEDGER_CHECK not in titles


@pytest.mark.parametrize(
    ("path", "mode", "name"),
    [
        ("site/north.npz", 0o640, OWNERS),
        ("node/north", 0o604, OWNERS),
        ("site/state", 0o755, OWNERS),
        ("node/secret", 0o644, "the SuperNode leaves the work to the executor"),
        ("site/secret", 0o644, "the executor is the one from this package"),
    ],
)
def test_what_others_can_read_is_found(place, path, mode, name):
    (place / path).chmod(mode)
    ((found, (fault,)),) = faults(place).items()
    assert found == name
    assert f"chmod {'700' if path.endswith('state') else '600'} {place / path}" in fault


def test_rounds_that_the_ledger_lacks_are_found(place):
    own = place / "site" / "state" / "north"
    own.mkdir(mode=0o700)
    note = own / "ledger.sqlite-LACKS-ROUNDS.txt"
    note.touch()
    ((fault,),) = faults(place).values()
    assert fault.startswith(f"{note}: the server has answers that the ledger does not have")


def test_a_delta_too_large_for_the_sites_patients_is_found(place, cohort):
    config = place / "site" / "north.toml"
    text = config.read_text()
    for share, found in ((0.099, 0), (0.101, 1)):
        config.write_text(f"{text}budget-delta = {share / len(cohort.sites[0])}\n")
        assert len(faults(place)) == found


def test_a_site_whose_rounds_can_be_timed_is_found_unless_it_has_no_noise(place):
    config = place / "site" / "north.toml"
    timed = config.read_text().replace("reply-after = 60.0", "")
    config.write_text(timed)
    assert f"set reply-after in {config}" in faults(place)["each reply leaves at a fixed time"][0]
    config.write_text(timed.replace('"patient"\nmax-epsilon = 4.0', '"none"'))
    assert faults(place) == {}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("process", "subprocess", "--isolation process"),
        ("--superexec-auth-secret-file", "--other", "--superexec-auth-secret-file"),
        ("--auth-supernode-private-key", "--other", "start it"),
        ("secret", "secret --node-config site='x'", "--node-config"),
        ("/opt/bin/dpfact", "/opt/bin/flower-supernode", "dpfact site connect"),
    ],
)
def test_a_supernode_that_is_started_otherwise_is_found(place, running, old, new, says):
    words = [part for word in running[0].words for part in (new.split() if word == old else [word])]
    running[0] = replace(running[0], words=words)
    assert says in " ".join(faults(place)["the SuperNode leaves the work to the executor"])


def test_a_part_that_does_not_run_or_runs_as_somebody_else_is_found(place, running):
    node, executor = running
    running[:] = [replace(node, uid=ME + 1), replace(executor, uid=ME + 1)]
    found = faults(place)
    assert "start it as" in found["the SuperNode leaves the work to the executor"][0]
    assert "start it as" in found["the executor is the one from this package"][0]
    running.clear()
    assert len(faults(place)) == 5


def test_a_wrong_clock_is_found_although_it_ends_the_supernode(place, running, monkeypatch):
    values = {"folder": place, "name": "north", "port": 9200, "centre": "centre.example:443"}
    installation._write_units(place, ("dpfact-node.service",), values)
    monkeypatch.setattr(check, "server_faults", lambda *centre: [f"{centre}: use NTP"])
    del running[0]
    ((fault,),) = [found for name, found in faults(place).items() if name.endswith("clocks agree")]
    assert fault == f"{('centre.example:443', place / 'node' / 'ca.crt')}: use NTP"


def test_an_executor_of_another_hospital_is_not_this_ones(place, running):
    other = [word.replace("north.toml", "south.toml") for word in running[1].words]
    running[1] = replace(running[1], words=other)
    (fault,) = faults(place)["the executor is the one from this package"]
    assert "no dpfact site answer with --config" in fault


def test_the_check_does_not_take_itself_for_the_executor(place, running):
    words = ["python", "/opt/bin/dpfact", "site", "check", "--config", f"{place}/site/north.toml"]
    running.insert(0, Process(3, ME + 1, words, {}, place))  # process ids start again
    assert faults(place) == {}


@pytest.mark.parametrize("command", check.FLOWERS_OWN)
def test_flowers_own_executor_and_its_apps_are_found(place, running, command):
    running.append(Process(3, ME, ["python", f"/opt/bin/{command}"], None, None))
    (fault,) = faults(place)["the two users run none of Flower's own executors"]
    assert command in fault
    running[-1] = replace(running[-1], uid=ME + 1)  # another user's, who has neither key nor data
    assert faults(place) == {}


def test_a_program_in_a_private_folder_is_found(place, monkeypatch):
    monkeypatch.setattr(check.sys, "executable", str(place / "site" / "north.toml"))
    monkeypatch.setattr(check, "_HIDDEN", (check.Path("/"),))
    for mode, found in ((0o755, False), (0o700, True)):
        (place / "site").chmod(mode)
        named = " ".join(check.program_faults())
        assert (f"cannot use {place}/site, but" in named) is found
        assert "cannot use /, but" in named


def test_a_network_is_found(place, monkeypatch):
    monkeypatch.setattr(check, "_denied", lambda pid: False)
    monkeypatch.setattr(check, "_interfaces", lambda pid: set())
    assert faults(place) == {}
    monkeypatch.setattr(check, "_interfaces", lambda pid: {"lo", "eth0"})
    assert "IPAddressDeny=any" in faults(place)[NETWORK][0]
    monkeypatch.setattr(check, "_denied", lambda pid: True)
    assert faults(place) == {}


@pytest.mark.parametrize(
    ("unit", "said", "denied"),
    [("x.service", "0.0.0.0/0 ::/0", True), ("x.service", "::/0 10.0.0.0/8", False),
     ("x.scope", "0.0.0.0/0 ::/0", False), ("x.service", OSError(), False)],
)  # fmt: skip
def test_only_a_service_that_denies_every_address_has_no_network(monkeypatch, unit, said, denied):
    whole = SimpleNamespace(read_text=lambda: f"0::/system.slice/{unit}\n")
    monkeypatch.setattr(check, "Path", lambda path: whole)
    answers = [said if isinstance(said, OSError) else SimpleNamespace(stdout=said)]
    monkeypatch.setattr(check.subprocess, "run", Mock(side_effect=answers))
    assert check._denied(7) == denied


@pytest.mark.skipif(not os.path.exists("/proc/self/net/dev"), reason="needs Linux's /proc")
def test_networks_are_those_that_the_system_has():
    assert check._interfaces(os.getpid()) == {name for _, name in socket.if_nameindex()}


def test_an_installation_and_code_that_others_can_change_are_found(place, running, monkeypatch):
    monkeypatch.setattr(
        check.files, "changeable_within", lambda path, _: (f"{path}{n}!" for n in range(9))
    )
    (place / "cache").mkdir()
    running[1] = replace(running[1], environment={"NUMBA_CACHE_DIR": str(place / "cache")})
    *installation, first, second, third = faults(place)[CODE]
    assert (first, second, third) == tuple(f"{place / 'cache'}{number}!" for number in range(3))
    assert f"{check.Path(check.__file__).parents[1]}0!" in installation


def test_settings_that_cannot_be_read_are_the_one_finding(place):
    (place / "site" / "north.toml").write_text("data-path = 1")
    (finding,) = check_site(place / "site" / "north.toml", place / "node" / "north")
    assert finding.faults


def test_the_command_prints_what_to_do_and_exits_with_1(place):
    words = ["site", "check", "--config", place / "site" / "north.toml",
             "--key", place / "node" / "north"]  # fmt: skip
    lines = dpfact(*words, code=1).splitlines()
    assert len([line for line in lines if line.startswith("OK")]) == len(check.CHECKS)
    assert any(line.startswith("FIX") and "of its own" in line for line in lines)
    read = json.loads(dpfact(*words, "--json", code=1))
    assert [each["check"] for each in read if each["faults"]] == [TWO_USERS]


@pytest.mark.parametrize(("executor", "node"), [(1001, 1002), (1002, 1001)])
def test_two_users_may_have_any_numbers_but_roots(executor, node):
    find, users = check.CHECKS[TWO_USERS], SimpleNamespace(executor_user=executor, node_user=node)
    assert list(find(users)) == []
    users.node_user = 0
    assert "root owns the key or the data" in next(find(users))


LEDGER_CHECK = "the ledger is intact"
ROOM = "the disk has space, and not too many rounds in a row have failed"


def test_settings_data_and_ledger_are_looked_at_before_a_run_needs_them(place):
    config, state = place / "site" / "north.toml", place / "site" / "state" / "north"
    with Ledger(state, create=True):
        pass
    assert faults(place) == {}
    (state / "job").mkdir()
    (state / LEDGER).write_bytes(b"damaged")
    assert faults(place).keys() == {LEDGER_CHECK}
    (state / LEDGER).unlink()
    assert "no ledger: restore it" in faults(place)[LEDGER_CHECK][0]
    (state / "job").rmdir()
    text = config.read_text()
    config.write_text(text.replace("max-epsilon = 4.0", "max-epsilon = 0.0"))
    assert "max-epsilon" in faults(place)["the settings are complete"][0]
    config.write_text(text)
    data = place / "site" / "north.npz"
    with np.load(data) as saved:
        arrays = dict(saved)
    for shape in (40, [], "40 patients", [np.nan, 9, 12], [[40, 9, 12]], [-1, 9, 12]):
        np.savez(data, **{**arrays, "shape": shape})
        ((title, (fault,)),) = faults(place).items()
        assert title == DATA
        assert fault.startswith(f"{data}: shape: need at least 2 modes (patients and one feature)")
    data.write_bytes(b"")
    assert faults(place).keys() == {DATA}


def test_the_disk_must_have_what_the_largest_run_may_leave(place, monkeypatch):
    """The check requires as much space as a round, so a site that passes can answer a round."""
    config = place / "site" / "north.toml"
    text = config.read_text()
    enough = 2**28 + largest_run([range(9), range(12)], SiteSettings(max_rank=50))
    monkeypatch.setattr(check.shutil, "disk_usage", lambda path: SimpleNamespace(free=enough))
    assert "lower max-rank" in faults(place)[ROOM][0]
    config.write_text(f"{text}max-rank = 50\n")
    assert faults(place) == {}


def test_a_full_disk_and_a_supernode_without_tls_are_found(place, running, monkeypatch):
    monkeypatch.setattr(check.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**27))
    least = 2**28 + largest_run([range(9), range(12)], SiteSettings())
    (own := place / "site" / "state" / "north").mkdir(mode=0o700)
    (own / ".failed-attempts").write_bytes(b"+" * 10)
    space, failures = faults(place)[ROOM]  # an error does not hide the faults found before it
    assert f"128 MiB left, but needs {least // 2**20}: free disk space" in space
    assert "10 rounds in a row" in failures
    plain = [word for word in running[0].words if "certificates" not in word and word != "ca.crt"]
    running[0] = replace(running[0], words=plain)
    (found,) = [f for name, f in faults(place).items() if name.startswith("the centre answers")]
    assert "without TLS" in found[0]


@pytest.fixture(scope="module")
def centre(tmp_path_factory):
    """A server with TLS that reports the time set by a test."""
    folder = tmp_path_factory.mktemp("centre")
    with pytest.MonkeyPatch.context() as short:
        short.setattr(installation, "_AUTHORITY_DAYS", 61)
        short.setattr(installation, "_SERVER_DAYS", 60)
        files, ahead = make_certificates(folder, "centre"), [0.0]

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def date_time_string(self, timestamp=None) -> str:
            return formatdate(time.time() + ahead[0], usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", files.authority, ahead
        server.shutdown()


def test_the_centre_is_reached_and_its_time_compared(centre, monkeypatch):
    address, authority, clock = centre
    clock[0] = 0
    assert server_faults(address, authority) == []
    clock[0] = 60
    (fault,) = server_faults(address, authority)
    assert "s behind the centre's" in fault
    for date in ("yesterday", "Mon, 99999999999 Nov 2026 05:46:30 GMT"):
        monkeypatch.setitem(globals(), "formatdate", lambda *_, date=date, **__: date)
        (fault,) = server_faults(address, authority)
        assert f"time as {date!r}" in fault


@pytest.mark.parametrize(("sent", "side"), [(96, "ahead of"), (97, ""), (103, ""), (104, "behind")])
def test_clocks_may_differ_by_three_seconds(monkeypatch, sent, side):
    monkeypatch.setattr(check, "time", Clock(100.0))
    faults = check._clock_faults(formatdate(sent, usegmt=True))
    assert faults == [f"this clock is 4 s {side} the centre's: use NTP"] * bool(side)


def test_a_stranger_a_wrong_name_and_nobody_are_told_apart(centre, tmp_path):
    address, authority, _ = centre
    other = make_certificates(tmp_path, "other").authority
    named = address.replace("127.0.0.1", "localhost")
    assert "is not the centre" in server_faults(address, other)[0]
    assert "is not the centre" in server_faults(named, authority)[0]
    for away in (f"127.0.0.1:{free_port()}", "centre..example:443"):
        assert "does not answer" in server_faults(away, authority)[0]
    for wrong in ("centre.example", "centre.example:", "centre.example:tls", "a:²", ":9092"):
        assert f"{wrong} is not HOST:PORT" in server_faults(wrong, authority)[0]
    assert "ask the centre for its ca.crt" in server_faults(address, tmp_path / "absent")[0]


def test_a_certificate_that_runs_out_soon_is_named(centre, monkeypatch):
    address, authority, clock = centre
    clock[0] = 40 * 86_400  # and so does this machine's clock
    monkeypatch.setattr(check, "time", SimpleNamespace(time=lambda: time.time() + clock[0]))
    found = server_faults(address, authority)
    assert len(found) == 2  # the server's and, a day later, its authority's
    assert all("expires on" in fault for fault in found)


PORT = "the executor answers the SuperNode's user, and no other user listens on its port"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/net")
def test_somebody_else_on_the_supernodes_port_is_found(place, running):
    executor = running[1]
    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = str(mine.getsockname()[1])
        asks = [*executor.words, "--port", port]
        running[1] = replace(executor, words=asks)
        assert PORT not in faults(place)
        running[1] = replace(executor, words=[*asks, "--node-user", str(ME + 1)])
        assert "another user's SuperNode: give it --node-user" in faults(place)[PORT][0]
        running[1] = replace(executor, words=asks, uid=ME + 1)  # answers its own user
        assert "another user's SuperNode" in faults(place)[PORT][0]
        found = [Listener(ME + 1, 1)]
        running[1] = replace(executor, words=asks)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(check, "listeners", lambda host, number: found)
            assert f"{user_name(ME + 1)} listens at 127.0.0.1:{port}" in faults(place)[PORT][0]
            running[1] = executor  # on the port that the command has by default
            assert "listens at 127.0.0.1:9094" in faults(place)[PORT][0]
            patch.setattr(check, "listeners", lambda host, number: None)
            assert "cannot see which process" in faults(place)[PORT][0]
