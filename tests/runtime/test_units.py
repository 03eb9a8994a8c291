"""The page's units under a real systemd, which is PID 1 in its own namespaces here.

These tests need root and cgroups of both versions, as with `systemd.unified_cgroup_hierarchy=0`. In
place of the units' commands, which the fault campaign starts, systemd starts probes that report
what a hospital's process can see.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.patience import await_that
from tests.processes import descendant
from tests.runtime.page import UIDS, written

SYSTEMD = Path("/lib/systemd/systemd")
GROUPS = Path("/sys/fs/cgroup")
NAME = f"dpfact-test-{os.getpid()}"
USERS = {"node": UIDS[0], "site": UIDS[1]}
ELSEWHERE = "10.77.0.1"
"""An address in place of another machine: one of the namespace's own, but not 127.0.0.1."""

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
    "restricted": [line in open("/proc/self/status").read() for line in (
        "NoNewPrivs:\\t1", "Seccomp:\\t2", "CapBnd:\\t" + 16 * "0", "Umask:\\t0077")],
    "here": said(connect, "127.0.0.1"), "elsewhere": said(connect, "{ELSEWHERE}"),
    "AF_INET6": said(make, "AF_INET6"), "AF_UNIX": said(make, "AF_UNIX"),
    "node": said(os.listdir, "/srv/dpfact/node"), "site": said(os.listdir, "/srv/dpfact/site"),
    "home": said(os.listdir, "/home"), "etc": said(open, "/etc/probe", "w"),
    "settings": said(open, "/srv/dpfact/site/north.toml", "a"),
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


def probing(name: str) -> str:
    """Return a hospital's unit that starts a probe and depends on no other unit."""
    text = written(f"dpfact-{name}.service").replace("\\\n", " ")
    text = re.sub(r"^(Wants|After|RequiresMountsFor)=.*\n", "", text, flags=re.M)
    text = text.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n")
    text = re.sub(r"^MemoryMax=.*$", "MemoryMax=150M", text, flags=re.M)
    start = f"ExecStart=/usr/bin/python3 /srv/dpfact/probe.py /srv/dpfact/{name}"
    return re.sub(r"^ExecStart=.*$", start, text, flags=re.M)


@contextmanager
def machine(folder: Path, units: dict[str, str]) -> Iterator[int]:
    """Start a systemd with these units under a process, with the folder's `srv` as /srv."""
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
    """Return whether a group of processes could be removed because all have ended."""
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.fixture
def started(tmp_path):
    """The folder of a hospital whose units systemd has started, and the process above systemd."""
    own = tmp_path / "srv" / "dpfact"
    listen = "ExecStart=/usr/bin/python3 -m http.server 7777 --bind 0.0.0.0"
    units = {f"dpfact-{name}.service": probing(name) for name in ("node", "site")}
    units["listen.service"] = f"[Unit]\nDefaultDependencies=no\n[Service]\n{listen}\n"
    for name, user in USERS.items():
        (own / name).mkdir(mode=0o700, parents=True)
        os.chown(own / name, user, user)
        (own / name / "north.toml").touch()
        os.chown(own / name / "north.toml", user, user)
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
    assert site["settings"] == "OSError"  # its unit may only read them
    assert site["core"] == 0
    for each in (node, site):
        assert (each["restricted"], each["home"]) == ([True] * 4, "PermissionError")
        assert each["etc"] == "OSError"
        assert each["hungry"] == -signal.SIGKILL  # the unit's own process survived
    (hospital / "site" / "found").unlink()
    os.kill(descendant(outside, "probe.py /srv/dpfact/site"), signal.SIGKILL)
    await_that((hospital / "site" / "found").exists, "the executor's second start")
