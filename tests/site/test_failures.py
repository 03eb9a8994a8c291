"""Failures at every step from a request to its reply reveal nothing about a patient.

Two sites, one of which has an additional patient with every code, get the same requests. Replies,
charges and file names must be equal. Disk errors are `state` before the patients are read, and all
errors are `failed` afterwards.
"""

import errno
import itertools
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dpfact_flower import client_app
from dpfact_flower.client_app import DPFactClient, RoundRefusedError
from dpfact_flower.errors import StateError
from dpfact_flower.privacy import PATIENT_CLAIM, ReleaseEvent
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import MOST_SLOTS, PrivacySettings, SiteSettings
from dpfact_flower.site import answer, disclosure, hospital, patient
from dpfact_flower.site.answer import Site
from dpfact_flower.site.lockout import ATTEMPT_LIMIT
from dpfact_flower.site.resources import bytes_needed, bytes_to_reserve, largest_run, reserve
from dpfact_flower.site.store import close_jobs
from dpfact_flower.wire.protocol import RoundRequest
from tests.bits import assert_bits
from tests.crash import WRITES, failing_at, files_up_to
from tests.ledgers import charge
from tests.patience import Clock
from tests.site.federation import PRIVACY, SIZES, Asked, Watched, World, raising

SECRET = "no space left for 'Jane Doe'"
FULL = raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

ROOM = largest_run([range(size) for size in SIZES], SiteSettings())
"""Bytes that are reserved before patients are read."""


def same(worlds: list[World], number: int) -> Asked:
    """Ask all sites, and return their common answer."""
    answers = [world.ask(number) for world in worlds]
    assert answers[0] == answers[1]
    assert worlds[0].names() == worlds[1].names()
    assert worlds[0].source.read_by_now == worlds[1].source.read_by_now
    return answers[0]


# --- the disk, at each step


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_disk_full_at_any_step_says_the_same_and_charges_nothing(worlds, number, tmp_path):
    before = World(worlds[0].source.read(), tmp_path / "before")
    before.go_to(number)
    before.ask(number)  # compiles code that only the first site would write to numba's cache
    for world in worlds:
        world.go_to(number)
    charged = number < 5
    before = worlds[0].rows()
    writes = [each for each in WRITES if each[1] != "unlink"]
    for step in itertools.count():
        answers = []
        for world in worlds:
            with failing_at(step, FULL, writes):
                answers.append(world.ask(number))
        assert answers[0] == answers[1]
        if answers[0].reply.startswith("["):
            break
        read = worlds[0].source.read_by_now  # a failure after that has another code
        assert answers[0] == (f"dpfact:{'failed' if read else 'state'}", before)
    assert step > (3 if charged else 0)
    assert worlds[0].rows() == worlds[1].rows() == before + charged
    assert same(worlds, number).reply == answers[0].reply
    assert worlds[0].rows() == before + charged


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_no_file_that_is_too_large_for_the_disk_tells_of_a_patient(worlds, number):
    for world in worlds:
        world.go_to(number)
    before = worlds[0].rows()
    for size in (0, 100, 1000, 5000, 20_000, 300_000, ROOM - 1, ROOM):
        with files_up_to(size):
            answers = [world.ask(number) for world in worlds]
        assert answers[0] == answers[1]
        if number == 5:
            # The end of the run: there is no charge, and the stored request may be lost.
            assert answers[0].reply.startswith("[")
        elif size < ROOM:
            # Too little space for a round, which is detected before patients are read.
            assert answers[0] == ("dpfact:state", before)
            assert not worlds[0].source.read_by_now
    assert answers[0] == same(worlds, number)


@pytest.mark.parametrize("values", [1, 1000, 50_000])
def test_the_room_that_is_held_suffices_for_the_charge(tmp_path, values):
    with Ledger(tmp_path, create=True) as ledger:
        before = (tmp_path / LEDGER).stat().st_size
        charge(ledger, "job", 1, "patient", values=values)
        grown = (tmp_path / LEDGER).stat().st_size - before
    assert grown < bytes_needed(values) - 2**17  # the journal uses the other half


def test_the_room_that_is_asked_for_is_the_same_for_runs_of_all_sizes():
    """Otherwise, a server could measure the free disk space with larger and larger runs."""
    plain, joins = SiteSettings(max_rank=200), SiteSettings(max_rank=200, secure_key="/key")
    for sizes in ((9, 12), (202, 316), (2000, 3000)):
        codes = [range(size) for size in sizes]
        most, sharing = largest_run(codes, plain), largest_run(codes, joins)
        for rank, rounds, kept in itertools.product((1, 20, 200), (0, 1, 40, 100), ("", "2x2")):
            asked = PrivacySettings(
                epsilon=4.0, start_share=0.5 if rounds else 1.0, refine_rounds=rounds, bound=0.1,
                codes=kept,
            )  # fmt: skip
            plan = plan_patient(asked, sizes=sizes, rank=rank)
            events = [release.event("ab", seeded=False) for release in plan.releases]
            for rest in (events, events[-1:]):
                assert bytes_to_reserve(rest, codes, plain) == most
            for slots in (1, MOST_SLOTS):
                summed = replace(asked, secure_sums=True, secure_sites=1000, secure_slots=slots)
                plan = plan_patient(summed, sizes=sizes, rank=rank)
                shares = [release.event("ab", seeded=False) for release in plan.releases]
                assert bytes_to_reserve(shares, codes, joins) == sharing


def test_a_run_of_a_rule_of_ones_own_may_need_more_room_in_few_sizes():
    event = ReleaseEvent("x", 1.0, 7.0, 10**8, "patient", "add-remove", PATIENT_CLAIM)
    codes, settings = [range(size) for size in SIZES], SiteSettings(max_rank=200)
    counts = range(10**6, 10**8, 10**6)
    sizes = {bytes_to_reserve([replace(event, count=n)], codes, settings) for n in counts}
    assert sizes == {ROOM, 4 * ROOM, 16 * ROOM, 64 * ROOM}
    assert bytes_needed(10**8) <= max(sizes)
    assert bytes_needed(100_049) == 402_196 + 2**18
    pairs, refined = 21 + 210, 200 * (9 + 12) + 2 * 20_100
    assert largest_run([range(9), range(12)], settings) == bytes_needed(pairs + 100 * refined)
    assert largest_run(codes, replace(settings, secure_key="k")) == ROOM + 16 * MOST_SLOTS * refined
    shared = replace(event, own_sigma=1.0)
    for each, most in ((event, pairs + 100 * refined), (shared, (ROOM - 2**18) // 16)):
        rest = [[replace(each, count=most + more)] for more in (0, 1)]
        assert [bytes_to_reserve(r, codes, settings) for r in rest] == [ROOM, 4 * ROOM]
    assert bytes_to_reserve([], codes, settings) == 2**24  # without noise


def test_a_disk_without_room_is_told_how_much_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfact_flower.site.resources.reserved", FULL)
    with pytest.raises(StateError, match=r"needs 17 MiB of free disk space.*\(No space left"):
        reserve(ExitStack(), tmp_path, 17 * 2**20 - 1)


def test_refusals_of_ever_new_jobs_leave_nothing_on_the_disk(world):
    """Requests without a charge are unlimited, so they must not fill the disk."""
    world.go_to(2)
    asked, folder = world.requests[2], world.folder / "north"
    before = world.names()
    for number in range(3):
        late = replace(asked, job=f"late-{number}")
        assert world.answer(late, time_left=-1.0) == ("dpfact:late", 1)
    with files_up_to(ROOM - 1):
        assert world.answer(replace(asked, job="full")) == ("dpfact:state", 1)
    (folder / ".failed-attempts").write_bytes(b"+" * ATTEMPT_LIMIT)
    for number in range(3):
        assert world.answer(replace(asked, job=f"closed-{number}")) == ("dpfact:state", 1)
    (folder / ".failed-attempts").unlink()
    assert world.names() == before
    assert not world.source.read_by_now


# --- other failures


ERRORS = (
    MemoryError(SECRET), ValueError(SECRET), StateError(SECRET), OSError(errno.ENOSPC, SECRET),
    RecursionError(SECRET), ZeroDivisionError(SECRET),
)  # fmt: skip


BEFORE = {
    "reading the patients": (Watched, "read"),
    "summing": (patient.PatientRound, "bounded"),
    "drawing noise": (patient, "release"),
    "checking what was announced": (answer, "compute"),
    "charging": (Ledger, "charge"),
    "the data's tag": (answer, "keyed_hash"),
    "the store": (hospital.Hospital, "store"),
    "the ledger's key": (answer, "ReleaseKey"),
}
AFTER = {
    "cleaning up": (Site, "_clean_up"),
    "the claim": (answer, "claim_of"),
    "forgetting looks": (Path, "unlink"),
    "closing the ledger": (Ledger, "close"),
    "letting go of the patients": (answer, "forget_patients"),
    "waiting": (disclosure.ReplyDelay, "wait"),
}
"""Errors with another code, or errors that withheld a charged release."""


@contextmanager
def failing_once_read(world, place, error, *, charged: bool) -> Iterator[list[None]]:
    """Make something fail after patients are read, or after the release is charged."""
    owner, name = place
    real, met = getattr(owner, name), []
    last = (Ledger, "charge") if charged else (Site, "_reading_patients")
    step, begun = getattr(*last), []

    def call(*arguments, **named):
        if begun:
            met.append(None)
            raise error
        return real(*arguments, **named)

    def begin(*arguments):
        done = step(*arguments)
        begun.append(None)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        patch.setattr(*last, begin)
        yield met


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", BEFORE.values(), ids=BEFORE)
def test_whatever_fails_once_patients_are_read_is_one_code_and_no_charge(
    worlds, place, error, caplog
):
    for world in worlds:
        world.go_to(2)
        with failing_once_read(world, place, error, charged=False) as met:
            assert world.ask(2) == ("dpfact:failed", 1)
        assert met
    assert same(worlds, 2).rows == 2
    assert "Jane" not in caplog.text or isinstance(error, StateError)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", AFTER.values(), ids=AFTER)
def test_once_it_is_charged_a_release_goes_out_whatever_follows(worlds, place, error):
    for world in worlds:
        world.go_to(2)
        with failing_once_read(world, place, error, charged=True) as met:
            reply = world.client.fit(*world.requests[2].to_wire())
        assert met
        assert world.rows() == 2
        assert world.ask(2) == (f"{[a.dtype.str for a in reply[0]]} 1 {reply[2]}", 2)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_fails_on_the_way_out_of_a_failed_round_leaves_as_failed(world, error, monkeypatch):
    met = []

    def wait(_: disclosure.ReplyDelay) -> None:
        if not met:  # the folder's error; the reply waits again
            met.append(None)
            raise error

    monkeypatch.setattr(answer, "compute", raising(MemoryError()))
    monkeypatch.setattr(disclosure.ReplyDelay, "wait", wait)
    assert world.ask(1) == ("dpfact:failed", 0)
    assert met


def test_a_failed_round_lets_go_of_the_patients_before_its_reply_is_due(world, monkeypatch):
    """The time to free memory depends on its size, and the error refers to the data."""
    held, wait = [], disclosure.ReplyDelay.wait

    class Large:
        """A stand-in for data that a round computed from the patients."""

    def compute(*_: object) -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise MemoryError

    monkeypatch.setattr(patient.PatientRound, "bounded", compute)
    monkeypatch.setattr(answer, "compute", lambda *_: compute())
    monkeypatch.setattr(
        disclosure.ReplyDelay, "wait", lambda self: (held.append(held[0]()), wait(self))
    )
    assert world.ask(1).reply == "dpfact:failed"
    assert held[1:] == [None, None]


def charge_and_fail(*arguments, real=Ledger.charge):
    real(*arguments)
    raise MemoryError(SECRET)


@pytest.mark.parametrize(
    "place",
    [(Ledger, "charge", charge_and_fail), (client_app, "SiteReply", raising(MemoryError(SECRET))),
     (client_app, "step_of", raising(MemoryError(SECRET)))],
)  # fmt: skip
def test_a_release_that_fails_once_it_is_charged_is_sent_when_asked_for_again(worlds, place):
    """The row is on the disk, and the same request gets the stored values."""
    for world in worlds:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*place)
            assert world.ask(1) == ("dpfact:failed", 1)
    assert same(worlds, 1).rows == 1
    for world in worlds:
        sent = world.client.site.answer(world.requests[1])
        with Ledger(world.folder / "north", create=False) as ledger:
            assert_bits(sent.arrays, ledger.release_of("job", 1).arrays)


# --- rounds that have ended


@pytest.mark.parametrize("number", [1, 3])
def test_a_round_that_is_over_before_it_began_reads_nobody_and_costs_nothing(worlds, number):
    for world in worlds:
        world.go_to(number)
        for _ in range(ATTEMPT_LIMIT + 1):  # this is not an attempt
            assert world.ask(number, time_left=-1.0) == ("dpfact:late", number - 1)
            assert not world.source.read_by_now
            # An empty ledger without a job's folder would have a full budget.
            assert (world.folder / "north" / LEDGER).exists() == (number > 1)
    assert same(worlds, number).rows == number


@pytest.mark.parametrize("number", [1, 3])
def test_a_round_ready_too_late_has_failed_and_costs_nothing(worlds, number, monkeypatch, caplog):
    """Its duration depends on the patients, so it counts as one of few attempts."""
    clock, compute = Clock(), answer.compute

    def slow(*arguments: object) -> object:
        clock.now += 5.0
        return compute(*arguments)

    monkeypatch.setattr(disclosure, "time", clock)
    for world in worlds:
        world.go_to(number)
    monkeypatch.setattr(answer, "compute", slow)
    for world in worlds:
        for _ in range(ATTEMPT_LIMIT):
            assert world.ask(number, time_left=4.0) == ("dpfact:failed", number - 1)
            assert world.source.read_by_now
        assert world.ask(number, time_left=4.0) == ("dpfact:state", number - 1)
        assert not world.source.read_by_now
        (world.folder / "north" / ".failed-attempts").unlink()
        assert world.ask(number, time_left=6.0).rows == number
        assert world.ask(number, time_left=-1.0).rows == number  # charged releases are sent
    assert worlds[0].names() == worlds[1].names()
    assert "late: a reply would leave 1.0 s too late for its round" in caplog.text


# --- requests without a charge read no patients


def beyond_the_budget(request: RoundRequest) -> RoundRequest:
    return replace(request, job="other", privacy=replace(PRIVACY, epsilon=1e4))


def test_repeats_refusals_and_last_rounds_read_nobody(worlds):
    for world in worlds:
        world.go_to(6)
    first = worlds[0].requests
    factors = initial_factors((6, 8), 4, 9)
    asked = {
        "a repeat of the last request": (first[4], "["),
        "a repeat of an old one": (first[1], "["),
        "a stale round": (replace(first[3], anchors=factors), "dpfact:message"),
        "the last round anew": (replace(first[4], anchors=factors), "dpfact:message"),
        "other terms": (replace(first[4], seed=9), "dpfact:message"),
        "the end, again": (first[5], "["),
        "the end on other terms": (replace(first[5], seed=9), "dpfact:message"),
        "over the budget": (beyond_the_budget(first[1]), "dpfact:privacy-refused"),
        "nothing paid": (replace(first[5], job="new"), "dpfact:message"),
    }
    for what, (request, says) in asked.items():
        for world in worlds:
            world.requests = {0: request}
        answer = same(worlds, 0)
        assert not worlds[0].source.read_by_now, what
        assert answer.rows == 4, what
        assert answer.reply.startswith(says), what


@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_a_preflight_says_what_the_round_would_and_reads_charges_and_keeps_nothing(worlds, number):
    for world in worlds:
        world.go_to(number)
    first = worlds[0].requests
    asked = {
        "ready": first[number],
        "dpfact:message": replace(first[number], vocabulary="x"),
        "dpfact:privacy-refused": beyond_the_budget(first[1]),
    }
    before = [world.names() for world in worlds]
    for code, request in asked.items():
        for world in worlds:
            for _ in range(ATTEMPT_LIMIT + 1):
                assert world.preflight(request) == code
            assert not world.source.read_by_now
            assert world.rows() == number - 1
    after = [world.names() for world in worlds]
    assert after[0] == after[1]
    assert set(after[0]) - set(before[0]) <= {"north", "north/.lock"}
    for world in worlds:
        for earlier in range(1, number):
            assert world.preflight(first[earlier]) == "ready"  # sent releases are resent
            stale = replace(first[earlier], vocabulary="")
            assert world.preflight(replace(stale, seed=9)) == "dpfact:message"
    assert same(worlds, number).reply.startswith("[")


def test_a_preflight_refuses_what_the_disk_the_failures_or_the_ledger_would(world):
    world.go_to(2)
    request, folder = world.requests[2], world.folder / "north"
    with files_up_to(5000):
        assert world.preflight(request) == "dpfact:state"
        assert world.preflight(world.requests[1]) == "ready"  # sent releases need no space
    assert world.preflight(request) == "ready"
    (folder / ".failed-attempts").write_bytes(b"+" * ATTEMPT_LIMIT)
    assert world.preflight(request) == "dpfact:state"
    assert world.preflight(world.requests[1]) == "ready"  # and no data is read
    (folder / ".failed-attempts").unlink()
    ledger = folder / LEDGER
    ledger.rename(folder / "away")
    assert world.preflight(request) == "dpfact:state"  # its jobs exist, so the ledger was removed
    assert not ledger.exists()
    assert not world.source.read_by_now


def test_a_preflight_says_that_replies_are_held_for_too_long(world, monkeypatch):
    client = world.client
    client._reply_after = 600.0
    monkeypatch.setattr(disclosure.ReplyDelay, "wait", lambda self: None)
    arrays, config = world.requests[1].to_wire()
    with pytest.raises(RoundRefusedError, match="dpfact:late"):
        client.preflight(arrays, {**config, "round-timeout": 600.0})
    client.preflight(arrays, {**config, "round-timeout": 700.0})


def with_other_data(worlds: list[World]) -> list[World]:
    """Put the second site's data where the first site has answered a round."""
    before, after = worlds
    before.go_to(2)
    after.folder = before.folder
    after.client = DPFactClient(after.source, before.client.site._hospital.settings)
    return worlds


def test_data_that_changed_in_a_job_is_read_once_and_then_refused_for_good(worlds, caplog):
    before, after = with_other_data(worlds)
    assert after.ask(1).reply == before.ask(1).reply  # a repeat does not reveal this
    assert not after.source.read_by_now
    assert after.ask(2) == ("dpfact:failed", 1)
    assert after.source.read_by_now
    assert "the data or .ledger-key has changed" in caplog.text  # a restored ledger has a new key
    for world in (after, before):  # reading takes time, so it must not be free
        assert world.ask(2) == ("dpfact:state", 1)
        assert not world.source.read_by_now
    (note,) = before.folder.rglob("DATA-HAS-CHANGED.txt")
    note.unlink()  # as the hospital would do
    assert before.ask(2).rows == 2
    assert after.answer(replace(after.requests[1], job="other")).rows == 3  # adds to the charges


def test_a_job_closed_by_the_hospital_does_not_tell_whether_the_data_changed(worlds):
    before, after = with_other_data(worlds)
    folder = before.client.site._hospital.folder
    (key := folder / ".secure-job").touch()
    assert (close_jobs(folder), close_jobs(folder / "absent")) == (1, 0)
    assert not any(path.exists() for path in (key, folder / "absent"))
    for world in (before, after):
        assert world.ask(2) == ("dpfact:state", 1)
        assert not world.source.read_by_now


@pytest.mark.parametrize("tag", ["", "x"])
def test_a_full_disk_does_not_open_a_job_whose_tag_changed(world, monkeypatch, caplog, tag):
    world.go_to(2)
    monkeypatch.setattr(answer, "keyed_hash", lambda *_: tag)
    monkeypatch.setattr("dpfact_flower.site.store.replacing", FULL)
    (key := world.folder / "north" / "job" / "secure-job.json").touch()
    assert [world.ask(2), world.ask(2)] == [("dpfact:failed", 1)] * 2
    assert not key.exists()
    assert caplog.text.count("the data or .ledger-key has changed") == 2
