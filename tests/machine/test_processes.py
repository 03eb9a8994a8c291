"""Processes and sockets of this machine, as Linux shows them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine import processes as module
from dpfact_flower.machine.processes import Listener, Process, listeners, processes

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.mark.process
@linux
def test_a_process_is_seen_with_its_words_environment_and_folder(tmp_path):
    says_that_it_runs = "print('here', flush=True); input()"
    command = [sys.executable, "-c", says_that_it_runs, "--config=a b", "--key", "../k"]
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **ends, env={"MARK": "x=y"}, cwd=tmp_path) as process:
        # Popen returns during exec, before Linux shows the new command line.
        assert process.stdout.readline() == b"here\n"
        (found,) = [each for each in processes() if each.pid == process.pid]
        process.communicate(b"\n")
    assert found.uid == os.geteuid()
    assert list(found.words) == command
    assert found.environment is not None
    assert found.environment["MARK"] == "x=y"
    assert found.path("--config") == tmp_path / "a b"
    assert found.path("--key") == tmp_path.parent / "k"
    assert found.option("--none") is None
    assert found.path("--none") is None


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["/opt/bin/python", "/opt/bin/flower-supernode", "--port", "1"], True),
        (["flower-supernode"], True),
        (["python", "-m", "other", "x", "flower-supernode"], False),
    ],
)
def test_a_command_is_known_by_its_name(words, runs):
    assert Process(1, 0, words, None, None).runs("flower-supernode") is runs


needs_ipv6 = pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="needs IPv6")


@linux
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", pytest.param("::", marks=needs_ipv6)])
def test_a_socket_is_found_with_its_user(address):
    six = ":" in address
    family = socket.AF_INET6 if six else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=six) as made:
        port, inode = made.getsockname()[1], os.fstat(made.fileno()).st_ino
        assert listeners("127.0.0.1", port) == [Listener(os.geteuid(), inode)]
        client = socket.create_connection(("127.0.0.1", port))  # a connection is not a listener
        assert len(listeners("127.0.0.1", port)) == 1
        client.close()
    assert listeners("127.0.0.1", port) == []


HEAD = "sl local rem st queues timer retrnsmt uid timeout inode\n"
ROW = "0: {}:23F0 00000000:0000 {} 0:0 0:0 0 {} 0 77 1 0 100 0\n"
HERE, ANY, LOOPBACK_6, ANY_6 = "0100007F", "00000000", "0" * 24 + "01000000", "0" * 32
MAPPED = "0000000000000000FFFF00000100007F"
LISTENS, CONNECTED = "0A", "01"


@linux
@pytest.mark.parametrize(
    ("hosts", "rows", "uids"),
    [
        # The most specific listener gets the connection.
        (["127.0.0.1"], [(HERE, LISTENS, 5), (ANY, LISTENS, 6)], [5]),
        (["127.0.0.1"], [(MAPPED, LISTENS, 5), (ANY, LISTENS, 6)], [5]),
        (["127.0.0.1"], [(HERE, CONNECTED, 5), (ANY, LISTENS, 6)], [6]),
        (["127.0.0.1"], [(ANY_6, LISTENS, 5)], [5]),
        (["127.0.0.1"], [("0500A8C0", LISTENS, 5)], []),  # 192.168.0.5
        (["127.0.0.1"], [(LOOPBACK_6, LISTENS, 5)], []),
        (["::1"], [(ANY, LISTENS, 5), (ANY_6, LISTENS, 6)], [6]),  # 0.0.0.0 takes no IPv6
        # Each of two addresses counts: a process that takes the free one is reached first.
        (["127.0.0.1", "::1"], [(HERE, LISTENS, 5)], []),
        (["127.0.0.1", "::1"], [(HERE, LISTENS, 5), (LOOPBACK_6, LISTENS, 6)], [5, 6]),
    ],
)
def test_the_closest_listener_of_each_address_counts(tmp_path, monkeypatch, hosts, rows, uids):
    table = tmp_path / "tcp"
    table.write_text(HEAD + "".join(ROW.format(*row) for row in rows))
    monkeypatch.setattr(module, "_TABLES", (table,))
    found = [(0, 0, 0, "", (host, 0x23F0)) for host in hosts]
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *_, **__: found)
    assert sorted(each.uid for each in listeners("localhost", 0x23F0)) == uids


def test_what_cannot_be_seen_is_said(tmp_path, monkeypatch):
    assert listeners("192.0.2.1", 9200) is None
    assert listeners("no.such.host.invalid", 9200) is None
    with pytest.raises(SettingsError, match=r"'a\.\.b' is not the name or address of a host"):
        listeners("a..b", 9200)
    monkeypatch.setattr(module, "_TABLES", (tmp_path / "none",))
    assert listeners("127.0.0.1", 9200) is None
