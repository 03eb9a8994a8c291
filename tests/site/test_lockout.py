"""Reasons to close a site until a person acts: repeated failures, or a rolled-back folder.

A failure after the patients are read is not charged, so the number of failures is limited. The
server knows which requests were answered.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpfact_flower.errors import MessageError, StateError
from dpfact_flower.site import answer, lockout
from dpfact_flower.site.lockout import ATTEMPT_LIMIT, ATTEMPTS, check_no_note
from dpfact_flower.wire.protocol import RoundRequest
from tests.site.federation import raising, requests


@pytest.mark.parametrize("earlier", [0, 1])
def test_failures_in_a_row_come_to_an_end_that_reads_no_patient(world, monkeypatch, earlier):
    world.go_to(1 + earlier)
    with monkeypatch.context() as patch:
        patch.setattr(answer, "compute", raising(MemoryError()))
        for _ in range(ATTEMPT_LIMIT):
            assert world.ask(1 + earlier) == ("dpfact:failed", earlier)
            assert world.source.read_by_now
    for _ in range(3):  # even if it would not fail any more, because a person must check first
        assert world.ask(1 + earlier) == ("dpfact:state", earlier)
        assert not world.source.read_by_now
    for number in range(1, 1 + earlier):  # requests without a charge are still answered
        assert world.ask(number).reply.startswith("[")
    (world.folder / "north" / ATTEMPTS).unlink()
    assert world.ask(1 + earlier).rows == 1 + earlier


def test_a_release_forgets_the_failures_before_it(world, monkeypatch):
    for number in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(answer, "compute", raising(MemoryError()))
            for _ in range(ATTEMPT_LIMIT - 1):
                assert world.ask(number).reply == "dpfact:failed"
        assert world.ask(number).rows == number
        assert ATTEMPTS not in [path.name for path in (world.folder / "north").iterdir()]


def test_a_look_counts_before_it_begins(tmp_path):
    """A killed process cannot report anything."""
    for number in range(1, ATTEMPT_LIMIT + 2):
        look = lockout.counting_attempt(tmp_path)
        look.__enter__()
        assert (tmp_path / ATTEMPTS).stat().st_size == number
        del look
    with pytest.raises(StateError, match="11 rounds in a row"):
        lockout.check_attempts(tmp_path)


@pytest.mark.parametrize("preflight", [False, True])
@pytest.mark.parametrize("told", [1, 2])
def test_a_folder_set_back_answers_nothing_until_somebody_looked(world, tmp_path, preflight, told):
    asked, folder = requests(), world.folder / "north"
    world.go_to(2)
    shutil.copytree(folder, tmp_path / "backup")
    assert world.answer(replace(asked[2], answered={"north": 1})).rows == 2
    shutil.rmtree(folder)
    if told == 2:
        shutil.copytree(tmp_path / "backup", folder)
    next_ = replace(asked[3], answered={"north": told, "site-2": 2})
    said = world.preflight(next_) if preflight else world.answer(next_).reply
    assert said == "dpfact:state"
    other = replace(asked[1], job="another")
    assert world.answer(other).reply == "dpfact:state"  # for any server
    with pytest.raises(StateError) as fault:
        check_no_note(folder)
    note = Path(str(fault.value).partition(":")[0])
    assert f"has answered round {told} of job" in note.read_text()
    latest = ("no round of this job", "round 1 as the latest")[told - 1]
    assert f"The\nledger has {latest}." in note.read_text()
    assert "rose in the site's log since the copy" in note.read_text()
    assert world.rows() == told - 1
    note.unlink()
    assert world.answer(next_).reply == "dpfact:state"  # this job does not continue
    note.unlink()
    assert world.answer(other).reply.startswith("[")


def test_a_server_that_says_what_is_so_is_answered(world):
    asked = requests()
    for number in (1, 2, 3):
        said = {"site-2": 5} | ({"north": number - 1} if number > 1 else {})
        assert world.answer(replace(asked[number], answered=said)).rows == number
    check_no_note(world.folder / "north")
    # A repeated request with other `answered` values gets the same bytes at no cost.
    again = world.answer(replace(asked[3], answered={"north": 2}))
    assert again.reply.startswith("[")
    assert again.rows == 3


def test_what_the_server_says_of_answers_is_no_part_of_what_it_asks():
    asked = requests()[2]
    again = replace(asked, answered={"site-1": 1})
    assert (again.digest, again.terms) == (asked.digest, asked.terms)
    assert RoundRequest.from_wire(*again.to_wire()).answered == {"site-1": 1}
    assert RoundRequest.from_wire(*asked.to_wire()).answered == {}


@pytest.mark.parametrize("said", [3, "", "[1]", "7", '{"a": "x"}', '{"a": null}', "[" * 10_000,
                                  '{"a": 1e999}', '{"a": 99}', '{"a b": 1}'])  # fmt: skip
def test_what_is_no_word_of_answers_is_refused(said):
    arrays, config = requests()[2].to_wire()
    with pytest.raises(MessageError, match="answered"):
        RoundRequest.from_wire(arrays, {**config, "answered": said})
