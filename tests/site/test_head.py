"""The public parts of a ledger (head, backup, `show`) reveal nothing about a patient."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.privacy.ledger import LEDGER, back_up, data_key, keyed_hash, restore
from dpfact_flower.privacy.ledger.file import KEY, START, chained
from tests.cli.test_privacy import ledger_text
from tests.ledgers import rows_in

ROUNDS = 3


def documents(folder) -> list[dict]:
    with closing(sqlite3.connect(folder / LEDGER)) as connection:
        rows = connection.execute("SELECT document FROM releases ORDER BY number").fetchall()
    return [json.loads(text) for (text,) in rows]


def head_of(rows: list[dict], **changes: str) -> str:
    head = START
    for row in rows:
        head = chained(head, json.dumps({**row, **changes}))
    return head


def test_nothing_that_may_be_published_tells_which_of_two_neighbours_a_site_holds(worlds, tmp_path):
    """An attacker who knows all patients but one, and the transcript, recomputes the head."""
    prints = [world.source.read().fingerprint for world in worlds]
    for truth, world in enumerate(worlds):
        world.go_to(ROUNDS)
        world.answer(replace(world.requests[1], job="later"))
        home, copy = world.folder / "north", tmp_path / f"copy-{truth}"
        head = back_up(home, copy)
        rows = documents(copy)
        assert head.rows == len(rows) == ROUNDS
        # Otherwise, the tags would show whether the data changed between two jobs.
        assert [row["fingerprint"] == rows[0]["fingerprint"] for row in rows] == [True, True, False]
        told = (copy / LEDGER).read_bytes() + ledger_text("show", copy, "--json").encode()
        assert [path.name for path in copy.iterdir()] == [LEDGER]  # without the key
        for candidate, fingerprint in enumerate(prints):
            tags = [keyed_hash(home, row["job"], fingerprint) for row in rows]
            tagged = [{**row, "fingerprint": tag} for row, tag in zip(rows, tags, strict=True)]
            assert (tags[0].encode() in told) == (candidate == truth)
            assert (head_of(tagged) == head.hash) == (candidate == truth)
            # The backup does not help without the key, nor the key without the random bytes.
            assert fingerprint.encode() not in told
            assert bytes.fromhex(fingerprint) not in told
            assert head_of(rows, fingerprint=fingerprint) != head.hash
            assert head_of(tagged, random="0" * 64) != head.hash
    assert data_key(worlds[0].folder / "north") != data_key(worlds[1].folder / "north")


def test_a_key_that_is_lost_ends_jobs_and_forgets_nothing_that_was_charged(world, tmp_path):
    world.go_to(2)
    home = world.folder / "north"
    assert (home / KEY).stat().st_mode & 0o777 == 0o600
    key, head = data_key(home), back_up(home, tmp_path / "copy")
    spent = rows_in(home)
    for name in (LEDGER, f"{LEDGER}-head", KEY):
        (home / name).unlink()
    restore(tmp_path / "copy", home, head)
    assert world.ask(1).rows == 1  # sent releases are resent
    assert not (home / KEY).exists()
    assert world.ask(2) == ("dpfact:failed", 1)
    assert world.ask(2) == ("dpfact:state", 1)
    assert data_key(home) != key
    assert rows_in(home) == spent


@pytest.mark.parametrize("content", [b"", bytes(31), bytes(33)])
def test_a_damaged_key_is_said_before_a_patient_is_read(world, content):
    world.go_to(2)
    world.source.read_by_now = False
    (world.folder / "north" / KEY).write_bytes(content)
    assert world.ask(2).reply == world.preflight(world.requests[2]) == "dpfact:state"
    assert world.ask(1).reply.startswith("[")
    assert not world.source.read_by_now
    with pytest.raises(StateError, match="all charges still count"):
        data_key(world.folder / "north")
