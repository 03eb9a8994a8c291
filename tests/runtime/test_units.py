"""What systemd makes of the page's units: it is PID 1 of namespaces of its own here.

For root, on a machine whose groups of processes are of version 1 beside version 2, as under
`systemd.unified_cgroup_hierarchy=0`. Once it starts the units' own commands, and once, in their
place, probes of what a hospital's can see.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w

from dpfact_flower.runtime.connection import quiet_environment, tool
from laboratory.campaign.deployed import CODE
from tests.apart import apart
from tests.patience import await_that
from tests.processes import descendant
from tests.runtime.certificates import make_certificates, make_key
from tests.runtime.page import UIDS, Users, block_with, page_users

SYSTEMD = Path("/lib/systemd/systemd")
GROUPS = Path("/sys/fs/cgroup")
NAME = f"dpfact-test-{os.getpid()}"
USERS = {"centre": UIDS[1] + 1, "node": UIDS[0], "site": UIDS[1]}
ELSEWHERE = "10.77.0.1"
"""Stands for another machine: an address of the namespace's own that is not 127.0.0.1."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.deployment,
    pytest.mark.skipif(
        os.geteuid() != 0
        or not SYSTEMD.exists()
        or not shutil.which("unshare")
        or not (GROUPS / "systemd").exists()
        or not (GROUPS / "memory").exists(),
        reason="needs root, systemd's files, and groups of version 1",
    ),
]

OUTSIDE = f"""
set -e
for each in {GROUPS}/*/; do
  case $each in */cpuset/) continue;; esac
  mkdir -p $each/{NAME}
  echo $$ > $each/{NAME}/cgroup.procs
done
exec unshare --pid --fork --kill-child --mount --uts --ipc --net --cgroup --mount-proc sh -e "$1"
"""
INSIDE = f"""
mount --make-rprivate /
ip link set lo up
ip addr add {ELSEWHERE}/24 dev lo
groups=$(ls {GROUPS})
umount -R {GROUPS}
mount -t tmpfs tmpfs {GROUPS}
for each in $groups; do
  mkdir {GROUPS}/$each
  case $each in
    unified) mount -t cgroup2 cgroup2 {GROUPS}/$each;;
    systemd) mount -t cgroup -o none,name=systemd systemd {GROUPS}/$each;;
    *) mount -t cgroup -o $each $each {GROUPS}/$each;;
  esac
done
mount --bind FOLDER/passwd /etc/passwd
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /srv
cd FOLDER/srv
for each in *; do
  mkdir /srv/$each
  mount --bind $each /srv/$each
done
cd /
export SYSTEMD_UNIT_PATH=FOLDER/units container=other
exec {SYSTEMD} --system --unit=test.target
"""
PROBE = f"""
import json, os, resource, socket, subprocess, sys, time
def said(ask, *arguments):
    try:
        return ask(*arguments) and "done"
    except OSError as error:
        return type(error).__name__
def connect(address):
    return socket.create_connection((address, 7777), timeout=3)
def make(family):
    return socket.socket(getattr(socket, family), socket.SOCK_DGRAM)
while said(connect, "127.0.0.1") == "ConnectionRefusedError":
    time.sleep(0.1)
found = {{
    "user": os.getuid(),
    "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
    "no new privileges": "NoNewPrivs:\\t1" in open("/proc/self/status").read(),
    "here": said(connect, "127.0.0.1"), "elsewhere": said(connect, "{ELSEWHERE}"),
    "AF_INET6": said(make, "AF_INET6"), "AF_UNIX": said(make, "AF_UNIX"),
    "node": said(os.listdir, "/srv/dpfact/node"), "site": said(os.listdir, "/srv/dpfact/site"),
    "home": said(os.listdir, "/home"), "etc": said(open, "/etc/probe", "w"),
}}
found["hungry"] = subprocess.run(
    [sys.executable, "-c", "x = []\\nwhile len(x) < 400: x.append(b'1' * 2**20)"]
).returncode
found["pid"] = os.getpid()
with open(sys.argv[1] + "/part", "w") as file:
    json.dump(found, file)
os.rename(sys.argv[1] + "/part", sys.argv[1] + "/found")
time.sleep(3600)
"""


def unit(name: str) -> str:
    """The page's unit; of the system, only what is needed is there."""
    text = block_with(f"User=dpfact-{name}\n").replace("\\\n", " ")
    text = re.sub(r"^(After|RequiresMountsFor)=.*\n", "", text, flags=re.M)
    return text.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n")


def probing(name: str) -> str:
    """The page's unit, that starts a probe."""
    text = re.sub(r"^MemoryMax=.*$", "MemoryMax=150M", unit(name), flags=re.M)
    start = f"ExecStart=/usr/bin/python3 /srv/dpfact/probe.py /srv/dpfact/{name}"
    return re.sub(r"^ExecStart=.*$", start, text, flags=re.M)


def starting(name: str) -> str:
    """The page's unit with its own command, of the code that is tested; its log is a file."""
    text = unit(name)
    for old, new in {
        "/opt/dpfact/bin": str(Path(sys.executable).parent),
        "centre.example:443": "127.0.0.1:9190",
        "RestartSec=10": "RestartSec=1",
        "ProtectHome=yes\n": "",  # the tested Python may lie in somebody's
        "[Service]\n": f"[Service]\nStandardOutput=append:/srv/logs/{name}\nStandardError=inherit\n"
        f"Environment=PYTHONPATH={CODE} PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1\n",
    }.items():
        text = text.replace(old, new)
    return text


@contextmanager
def machine(folder: Path, units: dict[str, str]) -> Iterator[int]:
    """A process above a systemd that has started these units; `srv` in the folder is /srv there."""
    place = folder / "units"
    place.mkdir()
    bare = "[Unit]\nDefaultDependencies=no\n"
    for each in ("sysinit.target", "basic.target", "shutdown.target", "-.slice", "system.slice"):
        (place / each).write_text(bare)
    (place / "test.target").write_text(bare + "".join(f"Wants={each}\n" for each in units))
    for name, text in units.items():
        (place / name).write_text(text)
    users = "".join(
        f"dpfact-{name}:x:{uid}:0::/nonexistent:/usr/sbin/nologin\n" for name, uid in USERS.items()
    )
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + users)
    inside = folder / "inside"
    inside.write_text(INSIDE.replace("FOLDER", str(folder)))
    process = subprocess.Popen(["sh", "-c", OUTSIDE, "sh", str(inside)], start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for group in sorted(GROUPS.glob(f"*/{NAME}/**/"), key=lambda path: -len(path.parts)):
            await_that(lambda group=group: removed(group), "their end")


def removed(group: Path) -> bool:
    """Whether a group of processes could be removed: the last of them has gone."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def own_folder(path: Path, user: str) -> Path:
    """A folder of one of the page's users."""
    path.mkdir(mode=0o700, parents=True)
    os.chown(path, USERS[user], USERS[user])
    return path


def own_file(path: Path, user: str, content: bytes) -> None:
    """A file of one of the page's users."""
    path.write_bytes(content)
    path.chmod(0o600)
    os.chown(path, USERS[user], USERS[user])


def test_systemd_starts_the_pages_three_units(tmp_path):
    """With its own PATH, in which nothing of the installation is."""
    tls, logs = own_folder(tmp_path / "srv" / "tls", "centre"), tmp_path / "srv" / "logs"
    node, site = (own_folder(tmp_path / "srv" / "dpfact" / each, each) for each in ("node", "site"))
    logs.mkdir()
    made, secret = make_certificates(tmp_path, "made"), os.urandom(32)
    for name, path in (
        ("ca.crt", made.authority), ("server.pem", made.certificate), ("server.key", made.key),
    ):  # fmt: skip
        own_file(tls / name, "centre", path.read_bytes())
    own_file(node / "ca.crt", "node", made.authority.read_bytes())
    own_file(node / "north", "node", make_key(tmp_path, "north").read_bytes())
    own_file(node / "secret", "node", secret)
    own_file(site / "secret", "site", secret)
    own_file(site / "north.toml", "site", block_with("budget-delta =").encode())
    own_folder(site / "state", "site")

    def said(name: str, text: str) -> bool:
        return (logs / name).exists() and text in (logs / name).read_text()

    units = {f"dpfact-{name}.service": starting(name) for name in USERS}
    with apart(), machine(tmp_path, units) as outside:
        if page_users() != Users(*UIDS):
            pytest.skip("other users cannot run the tested code")
        await_that(lambda: said("centre", "startup complete"), "the SuperLink")
        await_that(lambda: descendant(outside, "flower-superexec"), "its helper")
        await_that(lambda: said("node", "[code: 2004]"), "a SuperNode that is not let in")
        connection = {"address": "127.0.0.1:9190", "root-certificates": str(made.authority)}
        config = {"superlink": {"centre": connection}}
        (tmp_path / "config.toml").write_text(tomli_w.dumps(config))
        subprocess.run(
            ["nsenter", "--target", str(descendant(outside, "dpfact superlink")), "--net",
             tool("flwr"), "supernode", "register", str(tmp_path / "north.pub"), "centre"],
            env={**quiet_environment(), "FLWR_HOME": str(tmp_path)}, check=True,
            capture_output=True,
        )  # fmt: skip
        await_that(lambda: said("node", "SuperNode ID"), "a SuperNode that is let in")
        await_that(lambda: said("site", "answering the SuperNode"), "the executor")
        await_that(lambda: descendant(outside, "flower-superexec"), "the helper, still")
    assert not said("centre", "Traceback")


@pytest.fixture
def started(tmp_path):
    """Folder of a hospital whose units systemd has started, and a process above all of it."""
    own = tmp_path / "srv" / "dpfact"
    listen = "ExecStart=/usr/bin/python3 -m http.server 7777 --bind 0.0.0.0"
    units = {f"dpfact-{name}.service": probing(name) for name in ("node", "site")}
    units["listen.service"] = f"[Unit]\nDefaultDependencies=no\n[Service]\n{listen}\n"
    for name in ("node", "site"):
        own_folder(own / name, name)
    (own / "probe.py").write_text(PROBE)
    with machine(tmp_path, units) as outside:
        yield own, outside


def test_systemd_gives_the_executor_the_data_and_no_network_and_starts_it_again(started):
    hospital, outside = started
    found = {}
    for name in ("node", "site"):
        await_that((hospital / name / "found").exists, f"the probe of {name}")
        found[name] = json.loads((hospital / name / "found").read_text())
    node, site = found["node"], found["site"]
    assert (node["user"], site["user"]) == UIDS
    assert (node["here"], node["elsewhere"]) == ("done", "done")
    assert (site["here"], site["elsewhere"]) == ("done", "TimeoutError")
    assert (node["AF_UNIX"], site["AF_UNIX"], site["AF_INET6"]) == ("done", "OSError", "OSError")
    assert (node["site"], site["node"]) == ("PermissionError", "PermissionError")
    assert site["core"] == 0
    for each in (node, site):
        assert each["no new privileges"]
        assert (each["home"], each["etc"]) == ("PermissionError", "OSError")
        assert each["hungry"] == -signal.SIGKILL  # which the unit's own process has outlived
    (hospital / "site" / "found").unlink()
    os.kill(descendant(outside, "probe.py /srv/dpfact/site"), signal.SIGKILL)
    await_that((hospital / "site" / "found").exists, "the executor's second start")
