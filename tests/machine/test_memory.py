"""The memory that a process may use."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dpfact_flower.machine import memory
from dpfact_flower.machine.memory import count_parent_memory, memory_limit, memory_used


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A machine on which the process is in the group a/b, without limits."""
    top, own = tmp_path / "cgroup", tmp_path / "own"
    (top / "a" / "b").mkdir(parents=True)
    own.write_text("1:name=systemd:/elsewhere\n0::/a/b\n")
    monkeypatch.setattr(memory, "_GROUPS", top)
    monkeypatch.setattr(memory, "_OWN_GROUP", own)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    return top


@pytest.mark.parametrize(
    ("above", "own", "memory"),
    [("max", "max", 4_096_000), ("2000000", "max", 2_000_000), ("3000000", "2000000", 2_000_000)],
)
def test_the_lowest_limit_of_its_own_groups_or_of_the_machine_counts(groups, above, own, memory):
    (groups / "c").mkdir()
    for group, limit in (("a", above), ("a/b", own), ("c", "1")):
        (groups / group / "memory.max").write_text(f"{limit}\n")
    assert memory_limit() == memory


@pytest.mark.parametrize("limited", ["a", "a/b"])
def test_groups_of_version_1_count_too(groups, limited):
    (groups.parent / "own").write_text("7:pids:/\n4:memory:/a/b\n0::/\n")
    (groups / "memory" / "a" / "b").mkdir(parents=True)
    (groups / "memory" / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert memory_limit() == 4_096_000
    (groups / "memory" / limited / "memory.limit_in_bytes").write_text("2000000\n")
    assert memory_limit() == 2_000_000


def test_who_offers_to_be_ended_is_ended_first(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_FIRST", tmp_path / "adjusted")
    memory.be_killed_first()
    assert (tmp_path / "adjusted").read_text() == "1000"
    monkeypatch.setattr(memory, "_FIRST", tmp_path / "missing" / "adjusted")
    memory.be_killed_first()  # on another system


def test_where_the_system_says_nothing_there_is_no_limit(groups, monkeypatch):
    (groups.parent / "own").unlink()
    monkeypatch.setattr(os, "sysconf", lambda _: int("unknown"))
    assert memory_limit() is None


def test_what_a_process_has_had_and_another_holds_for_it_counts(monkeypatch):
    assert memory_used() > 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    monkeypatch.setattr(memory.resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=5))
    monkeypatch.setattr(memory, "_parent", [0])
    assert memory_used() == 5 * unit
    count_parent_memory(2**20)
    assert memory_used() == 2**20 + 5 * unit


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library keeps nothing")
def test_memory_that_nothing_lies_in_is_given_back():
    """Half of the blocks are freed, each between two that stay in use."""
    script = """
import sys
from pathlib import Path
from dpfact_flower.machine.memory import give_back
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
blocks = [bytearray(100_000) for _ in range(1000)]
del blocks[::2]
before = held()
give_back()
print(before - held())
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(told.stdout) > 20e6
