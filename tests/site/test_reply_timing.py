"""The time at which a reply leaves, with a simulated clock, so that no test waits."""

import logging
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from dpfact_flower import client_app
from dpfact_flower.client_app import DPFactClient, RoundRefusedError
from dpfact_flower.data import site_data
from dpfact_flower.errors import LateError
from dpfact_flower.machine.files import locked
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site import admission, answer, disclosure
from dpfact_flower.site.disclosure import ReplyDelay, seconds_left
from dpfact_flower.wire import records
from tests import patience
from tests.site.federation import PRIVACY, make_settings, raising, requests, rows_of


class Clock(patience.Clock):
    """A clock that advances when code sleeps, or when a test advances it."""

    def time(self) -> float:
        return time.time() + self.now - 1000.0


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(disclosure, "time", clock)
    monkeypatch.setattr(client_app, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("passed", "due", "late"),
    [(0, 10, False), (9.9, 10, False), (10, 10, False), (10.1, 20, True), (20, 20, True),
     (20.1, 40, True), (79, 80, True), (81, 160, True)],
)  # fmt: skip
def test_a_reply_leaves_at_its_time_or_at_twice_four_times_that(clock, passed, due, late):
    held = ReplyDelay(10.0)
    clock.now += passed
    held.wait()
    assert (clock.now, held.late) == (1000.0 + due, late)
    clock.now += 0.5  # the reply is being written after the wait
    held.wait()
    assert clock.now == 1000.5 + due
    slept = clock.sleep
    clock.sleep = lambda seconds: slept(2 * seconds)  # a busy machine
    ReplyDelay(0.5).wait()
    assert clock.now == 1001.5 + due


def test_who_waits_for_another_reply_is_not_late_by_that(cohort, settings, clock, monkeypatch):
    """Otherwise, lateness would reveal the duration of the other round."""

    @contextmanager
    def after_another(folder):
        clock.now += 17
        with locked(folder):
            yield True

    monkeypatch.setattr(admission, "locked", after_another)
    taking(monkeypatch, clock, 4.0)
    assert ask(DPFactClient(cohort.sites[0], settings), requests()[1]) == "answered"
    assert clock.now == 1027.0


@pytest.mark.parametrize(
    ("reply_after", "passed", "left", "late"),
    [(0, 5, 6, 0), (0, 6.1, 6, 0.1), (10, 0, 9, 1), (10, 0, 10, 0), (10, 9, 10, 0), (10, 11, 19, 1),
     (10, 11, 20, 0), (1, 3, 2, 2), (10, 21, 39, 1), (0, 1e9, float("inf"), 0), (0, 3e3, 6, 2994)],
)  # fmt: skip
def test_a_round_is_over_once_its_reply_would_be_late(clock, reply_after, passed, left, late):
    """A delayed reply leaves at a fixed time, so its lateness does not depend on the patients."""
    held = ReplyDelay(reply_after, time_left=left)
    clock.now += passed
    reply = f"a reply, held until reply-after = {reply_after} s" if reply_after else "a reply"
    says = f"^{reply} would leave {late:.1f} s too late for .* the round-timeout is too short$"
    with pytest.raises(LateError, match=says) if late else nullcontext():
        held.check_in_time()


@pytest.mark.parametrize(
    ("since", "to_live", "left"),
    [(0, 100, 95), (30, 100, 65), (96, 100, -1), (0, 6000, 5970), (7000, 6000, -1030),
     (-200, 100, 95)],
)  # fmt: skip
def test_what_is_left_of_a_round_leaves_time_to_send_and_no_wrong_clock_adds_to_it(
    monkeypatch, since, to_live, left
):
    monkeypatch.setattr(disclosure.time, "time", lambda: 5000.0)
    assert seconds_left(5000.0 - since, to_live) == pytest.approx(left, rel=1e-12)


# --- through the entry points


@pytest.fixture
def settings(tmp_path) -> SiteSettings:
    return make_settings(tmp_path, max_epsilon=100.0, reply_after=10.0)


def taking(monkeypatch, clock: Clock, *seconds: float) -> None:
    """Make the next rounds take the given seconds."""
    times = list(seconds)
    compute = answer.compute

    def slow(*arguments):
        clock.now += times.pop(0)
        return compute(*arguments)

    monkeypatch.setattr(answer, "compute", slow)


def ask(client: DPFactClient, request) -> str:
    try:
        client.fit(*request.to_wire())
    except RoundRefusedError as error:
        return str(error).split(" ")[0]
    return "answered"


def test_release_refusal_and_failure_leave_at_the_same_time(cohort, settings, clock, monkeypatch):
    client = DPFactClient(cohort.sites[0], settings)
    first = requests()[1]
    taking(monkeypatch, clock, 3.0, 7.5)
    asked = {
        "answered": [first, first, requests()[2]],
        "dpfact:message": [replace(first, vocabulary="x"), replace(first, seed=5)],
        "dpfact:privacy-refused": [replace(first, job="b", privacy=replace(PRIVACY, epsilon=1e4))],
    }
    for code, some in asked.items():
        for request in some:
            began = clock.now
            assert ask(client, request) == code
            assert clock.now - began == pytest.approx(10, abs=1e-9)  # sums of floats


def test_a_round_that_overran_is_failed_is_charged_once_and_comes_free_when_asked_again(
    cohort, settings, clock, monkeypatch, caplog, tmp_path
):
    client = DPFactClient(cohort.sites[0], settings)
    taking(monkeypatch, clock, 11.0)
    caplog.set_level(logging.INFO)
    assert ask(client, requests()[1]) == "dpfact:failed"
    assert clock.now == 1020.0
    assert "ready after 11.0 s; reply-after is 10" in caplog.text
    assert "reply-after is too short" in caplog.text
    assert ask(client, requests()[1]) == "answered"
    assert clock.now == 1030.0
    assert len(rows_of(tmp_path)) == 1
    # A round begins with the work of a preflight, so it would overrun too.
    monkeypatch.setattr(client.site, "preflight", lambda *_: setattr(clock, "now", 1041.0))
    arrays, config = requests()[2].to_wire()
    with pytest.raises(RoundRefusedError, match="dpfact:failed"):
        client.preflight(arrays, {**config, "round-timeout": 600.0})
    assert clock.now == 1050.0


@pytest.mark.parametrize(("seconds", "free"), [(4.0, [1010.0]), (11.0, [1020.0])])
def test_nobody_learns_when_a_round_was_over(cohort, settings, clock, monkeypatch, seconds, free):
    """The folder is locked until the reply is due, even if it is late."""
    released = []

    @contextmanager
    def watched(folder):
        with locked(folder):
            try:
                yield
            finally:
                released.append(clock.now)

    monkeypatch.setattr(admission, "locked", watched)
    taking(monkeypatch, clock, seconds)
    ask(DPFactClient(cohort.sites[0], settings), requests()[1])
    assert released == free


def node(cohort_folder, tmp_path, **changes) -> dict:
    return {"data-path": str(cohort_folder / "site-1.npz"), "state-dir": str(tmp_path / "state"),
            "allow-privacy": "patient", "max-epsilon": 100.0, "reply-after": 10.0,
            **changes}  # fmt: skip


def send(config: dict, content: RecordDict) -> Message:
    grid = InProcessGrid(client_app.app, [config])
    (reply,) = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "train")])
    return reply


def test_the_door_says_failed_if_a_reply_cannot_be_made(cohort_folder, tmp_path, monkeypatch):
    config = node(cohort_folder, tmp_path, **{"reply-after": 0.0})
    content = records.ask(*requests()[1].to_wire())
    with monkeypatch.context() as patch:
        patch.setattr(records, "answer", raising(MemoryError("of 'Jane Doe'")))
        assert send(config, content).error.reason.startswith("dpfact:failed")
    assert not send(config, content).has_error()


def test_the_clock_runs_from_the_door(cohort_folder, tmp_path, clock, monkeypatch):
    """Opening the site's file and reading the message count too."""
    opened = client_app.open_site

    def slow(path):
        clock.now += 2.0
        return opened(path)

    monkeypatch.setattr(client_app, "open_site", slow)
    taking(monkeypatch, clock, 3.0, 3.0)
    config = node(cohort_folder, tmp_path)
    assert not send(config, records.ask(*requests()[1].to_wire())).has_error()
    assert clock.now == 1010.0
    client = client_app.client_for(Context(1, 1, config, RecordDict(), {}))  # as client_fn gets
    assert ask(client, requests()[2]) == "answered"
    assert clock.now == 1020.0


FOREIGN = RecordDict({"config": ConfigRecord({"job": "x"})})


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, "message"), ({"data-path": "/absent.npz"}, "data"), ({"state-dir": ""}, "settings")],
)
def test_a_refusal_before_there_is_a_client_is_held(cohort_folder, tmp_path, clock, changes, code):
    reply = send(node(cohort_folder, tmp_path, **changes), FOREIGN)
    assert reply.error.reason.startswith(f"dpfact:{code}")
    assert clock.now == 1010.0


def test_without_a_delay_nothing_is_held(cohort_folder, tmp_path, clock, cohort, settings):
    bad = node(cohort_folder, tmp_path, **{"reply-after": "soon"})
    assert send(bad, FOREIGN).error.reason.startswith("dpfact:settings")
    send(node(cohort_folder, tmp_path, **{"partition-id": 0, "num-partitions": 1}), FOREIGN)
    site = DPFactClient(cohort.sites[0], settings).site
    site.preflight(requests()[1])
    site.answer(requests()[1])
    assert clock.now == 1000.0


def test_a_message_that_lay_too_long_is_late_for_free(cohort_folder, tmp_path, clock, monkeypatch):
    """The message's creation time and time to live decide."""
    config = node(cohort_folder, tmp_path, **{"reply-after": 0.0})
    content = records.ask(*requests()[1].to_wire())
    grid = InProcessGrid(client_app.app, [config])
    codes = []
    for to_live, passed in ((100.0, 96.0), (200.0, 50.0)):  # this clock's seconds add up
        message = Message(content, grid.get_node_ids()[0], "train", ttl=to_live)
        clock.now += passed
        (reply,) = grid.send_and_receive([message])
        codes.append(reply.error.reason.split(" ")[0] if reply.has_error() else "answered")
    assert codes == ["dpfact:late", "answered"]
    assert len(rows_of(tmp_path)) == 1


@pytest.mark.parametrize(("left", "said"), [(40.0, "dpfact:failed"), (50.0, "answered")])
def test_a_machine_that_pauses_while_a_charge_is_written_charges_nothing_after_the_round(
    cohort, settings, tmp_path, clock, monkeypatch, left, said
):
    begun = Ledger._transaction

    @contextmanager
    def pausing(ledger, kind):
        with begun(ledger, kind) as connection:
            clock.now += 45.0 * (kind == "EXCLUSIVE")
            yield connection

    monkeypatch.setattr(Ledger, "_transaction", pausing)
    settings = replace(settings, reply_after=0.0)
    client = DPFactClient(cohort.sites[0], settings, delay=ReplyDelay(0, clock.now, left))
    assert ask(client, requests()[1]) == said
    monkeypatch.undo()
    assert len(rows_of(tmp_path)) == (said == "answered")


def test_nobody_is_kept_in_memory_when_a_reply_is_due(cohort_folder, settings, monkeypatch):
    """The time to free memory depends on its size, and the next message waits for it."""
    kept = []
    monkeypatch.setattr(
        ReplyDelay, "wait", lambda self: kept.append(site_data._load_version.cache_info().currsize)
    )
    client = DPFactClient(site_data.open_site(cohort_folder / "site-1.npz"), settings)
    for number in (1, 2, 3):
        client.fit(*requests()[number].to_wire())
    assert set(kept) == {0}
