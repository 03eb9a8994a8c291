"""What fails after the patients were read is not charged, and so may not be had without end."""

import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.site import answer
from dpfact_flower.site.lockout import ATTEMPT_LIMIT, ATTEMPTS, check_attempts, counting_attempt
from tests.site.test_failures import World


@pytest.fixture
def world(cohort, tmp_path) -> World:
    return World(cohort.sites[0], tmp_path)


def failing(*_):
    raise MemoryError


@pytest.mark.parametrize("earlier", [0, 1])
def test_failures_in_a_row_come_to_an_end_that_reads_no_patient(world, monkeypatch, earlier):
    world.go_to(1 + earlier)
    with monkeypatch.context() as patch:
        patch.setattr(answer, "compute", failing)
        for _ in range(ATTEMPT_LIMIT):
            assert world.ask(1 + earlier) == ("dpfact:failed", earlier)
            assert world.source.read_by_now
    for _ in range(3):  # also where it would not fail any more: a person has to look first
        assert world.ask(1 + earlier) == ("dpfact:state", earlier)
        assert not world.source.read_by_now
    for number in range(1, 1 + earlier):  # what costs nothing is answered as ever
        assert world.ask(number).reply.startswith("[")
    (world.folder / "north" / ATTEMPTS).unlink()
    assert world.ask(1 + earlier).rows == 1 + earlier


def test_a_release_forgets_the_failures_before_it(world, monkeypatch):
    for number in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(answer, "compute", failing)
            for _ in range(ATTEMPT_LIMIT - 1):
                assert world.ask(number).reply == "dpfact:failed"
        assert world.ask(number).rows == number
        assert ATTEMPTS not in [path.name for path in (world.folder / "north").iterdir()]


def test_a_look_counts_before_it_begins(tmp_path):
    """A process that is killed says nothing more."""
    for number in range(1, ATTEMPT_LIMIT + 1):
        look = counting_attempt(tmp_path)
        look.__enter__()
        assert (tmp_path / ATTEMPTS).stat().st_size == number
        del look
    with pytest.raises(StateError, match="10 rounds in a row"):
        check_attempts(tmp_path)
