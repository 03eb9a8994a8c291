"""Secure sums with kills and a bad network: correct sums, and nothing is charged or opened twice.

A site dies at each call that touches its disk, in each stage, and a server between any two of its
steps. Then both restart from their disks. Messages are dropped, delayed, doubled, repeated and
reordered, as drawn from a seed.
"""

import heapq
import itertools
import random
import shutil
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message

from dpfact_flower import secure_rounds
from dpfact_flower.client_app import DPFactClient
from dpfact_flower.client_app import app as client_app
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DPFactError
from dpfact_flower.machine.parsed import load_npz
from dpfact_flower.privacy import Share
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime import grid as grids
from dpfact_flower.runtime.serve import _app_of
from dpfact_flower.server import secure
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import CHECKPOINT, read_history
from dpfact_flower.settings import SiteSettings
from dpfact_flower.strategy import DPFact
from dpfact_flower.wire import records
from dpfact_flower.wire.secure import SecureStage
from tests.conftest import count_tensor, make_vocabularies
from tests.crash import Killed, answered_in_a_child, failing_at, killed
from tests.ledgers import rows_in
from tests.patience import Clock
from tests.test_secure_rounds import NAMES, PRIVACY, sites, strategy

pytestmark = pytest.mark.slow

ALL = [f"site-{number:02d}" for number in range(1, 13)]


# --- A federation that is watched -----------------------------------------------------------------


class Watched:
    """Sites on a disk, and conditions on all their messages."""

    def __init__(self, folder, data) -> None:
        self.folder, self.data = folder, {each.name: each for each in data}
        self.said: dict[tuple[str, int, str], set[bytes]] = defaultdict(set)
        self.opened: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.summed = 0
        self.why: Counter[str] = Counter()

    def answer(self, site: str, message: Message) -> Message:
        """Return the answer of a new process of a site, which must agree with earlier answers."""
        settings = SiteSettings(state_dir=str(self.folder), allow_privacy="patient")
        app = _app_of([DPFactClient(self.data[site], settings, simulation=True)])
        reply = app(message, grids.Context(1, 1, {"partition-id": 0}, grids.RecordDict(), {}))
        self.watch(site, message, reply)
        return reply

    def watch(self, site: str, message: Message, reply: Message) -> None:
        stage, number = stage_of(message)
        if stage is None or reply.has_error():
            if reply.has_error():
                self.why[reply.error.reason] += 1
            return
        sent = b"".join(array.tobytes() for array in records.read_reply(reply).arrays)
        asked = stage.asked if stage.stage == "keys" else ()  # other terms need another key
        key = site, number, f"{stage.stage} {stage.attempt} {asked}"
        self.said[key].add(sent)
        assert len(self.said[key]) == 1, key
        opened = self.opened[site, number]
        if stage.stage == "open":
            opened.add(stage.attempt)
            assert len(opened) == 1, f"{site} opened {opened} of round {number}"
        if stage.stage == "sum":
            assert opened <= {stage.attempt}
            assert number in [row.round for row in self.rows(site)]

    def rows(self, site: str):
        return rows_in(self.folder / site)

    def check_charges(self, server: Coordinator) -> None:
        for site in self.data:
            rows = self.rows(site)
            assert len({(row.job, row.round) for row in rows}) == len(rows)
            for row in rows:
                planned = server.rule.planned_events(row.round)
                assert [event.rho for event in row.events] == [event.rho for event in planned]

    def check_sum(self, server: Coordinator, number: int, names, sums) -> None:
        """Check the slots' totals against the vectors on the members' disks."""
        planned = server.planned_release(number)
        kept = [load_npz(self.folder / site / "job" / "secure-round.npz", ["noisy"])
                for site in names]  # fmt: skip
        exact = secure.slot_totals(sum(each["noisy"] for each in kept), planned)
        for got, want in zip(sums, exact, strict=True):
            unit = planned.own_sigma / 2**8
            scale = unit * (2 + len(names)) + 1e-6 * np.abs(want.arrays[0]).max()
            np.testing.assert_allclose(got.arrays[0], want.arrays[0], atol=scale)
        self.summed += 1

    def gone_on(self, folder, lost=(), *, resume=True) -> Coordinator:
        """A run that is gone on with, in which every round learns."""
        made = self.server(run_dir=folder, resume=resume)
        made.start(Steady(self, lost))
        assert [record.updated for record in made.coordinator.records] == [True] * 4
        self.check_charges(made.coordinator)
        return made.coordinator

    def server(self, **options) -> DPFact:
        """Return a strategy whose sums are compared with the sites' disks."""
        made = strategy(number=len(self.data), **options)
        close = made.coordinator.close_round

        def closing(number, usable, failures, *, sums=None, **more):
            planned = made.coordinator.planned_release(number)
            if sums:
                self.check_sum(made.coordinator, number, [each.site for each in usable], sums)
            elif planned is not None:
                assert failures  # which give the reason
            return close(number, usable, failures, sums=sums, **more)

        made.coordinator.close_round = closing
        return made


def stage_of(message: Message) -> tuple[SecureStage | None, int]:
    config = records.read_request(message).config
    text = config.get("secure")
    return SecureStage.from_text(text) if text else None, config["round"]


class Steady(grids.InProcessGrid):
    """Nodes that answer at once, each in a new process, except for nodes that a test loses."""

    def __init__(self, watched: Watched, lost=()) -> None:
        super().__init__(client_app, [{}] * len(watched.data))
        self.watched, self.lost = watched, set(lost)
        self.names = dict(zip(self._contexts, watched.data, strict=True))
        self.asked: list[Message] = []

    def _deliver(self, message: Message) -> Message:
        site = self.names[message.metadata.dst_node_id]
        stage, number = stage_of(message)
        if stage and self.lost & {
            (site, stage.stage, number), (site, f"{stage.stage} {stage.attempt}", number)
        }:  # fmt: skip
            return Message(Error(5, "gone"), reply_to=message)
        self.asked.append(message)
        return self.watched.answer(site, message)


# --- A site that dies -----------------------------------------------------------------------------

FOUR = sites(4)
STAGES = ("keys", "sum", "open")


@pytest.fixture
def watched(tmp_path, clock) -> Watched:
    return Watched(tmp_path / "state", FOUR)


@pytest.fixture
def stages(tmp_path, watched, monkeypatch):
    """Each stage's message to site-2 in a round of four sites, with its earlier folders."""
    found, grid = {}, Steady(watched)
    deliver = grid._deliver

    def note(message):
        stage, number = stage_of(message)
        site = grid.names[message.metadata.dst_node_id]
        if stage and site == "site-2" and number <= 2:
            before = tmp_path / f"before-{stage.stage}-{number}"
            if (watched.folder / site).exists():
                shutil.copytree(watched.folder / site, before)
            found[stage.stage, number] = message, before
        return deliver(message)

    grid._deliver = note
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    watched.server().start(grid)
    assert found.keys() == {("keys", 1), *itertools.product(("sum", "open"), (1, 2))}
    return watched, found


def died_and_asked_again(watched, message, before, kill) -> bool:
    """Restore a site's folder, kill the site, and ask again twice. Return whether it survived."""
    folder = watched.folder / "site-2"
    shutil.rmtree(folder, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, folder)
    fresh = Watched(watched.folder, watched.data.values())
    rows = fresh.rows("site-2")
    lived = kill(lambda: fresh.answer("site-2", message))
    stage, number = stage_of(message)
    assert len(fresh.rows("site-2")) - len(rows) in (0, 1)
    again = fresh.answer("site-2", message)
    assert not again.has_error(), again
    assert not fresh.answer("site-2", message).has_error()  # compared: the same bytes
    assert [row.round for row in fresh.rows("site-2")] == list(
        range(1, number + (stage.stage != "keys"))
    )
    return lived


def further_attempt(message: Message) -> Message:
    """Return another attempt at a message's sum, as if site-4 were lost."""
    asked = records.read_request(message)
    stage = SecureStage.from_text(asked.config["secure"])
    fewer = replace(stage, stage="sum", attempt=2, asked=tuple(NAMES[:3]), sealed={})
    config = {**asked.config, "secure": fewer.to_text()}
    changed = Message(records.ask(asked.arrays, config), 2, message.metadata.message_type)
    changed.metadata.__dict__["_message_id"] = "further"
    return changed


def raising_at(step):
    """End a process at a call with an error that nothing catches."""

    def kill(answer) -> bool:
        with suppress(Killed), failing_at(step, killed):
            answer()
            return True
        return False

    return kill


def dying_at(step):
    """End a real process at a call."""
    return lambda answer: answered_in_a_child(lambda: bool(answer()).to_bytes(1, "big"), step)[0]


@pytest.mark.parametrize(
    ("kill", "stride"),
    [
        (raising_at, 5),
        pytest.param(raising_at, 1, marks=pytest.mark.nightly),
        pytest.param(dying_at, 2, marks=[pytest.mark.nightly, pytest.mark.process]),
    ],
)
def test_a_site_that_dies_at_any_write_of_any_stage_says_the_same_again(stages, kill, stride):
    watched, found = stages
    deaths: Counter[str] = Counter()
    for (stage, number), (message, before) in found.items():
        for step in itertools.count(number % stride, stride):
            watched = Watched(watched.folder, FOUR)
            lived = died_and_asked_again(watched, message, before, kill(step))
            if stage == "sum":
                kept = load_npz(watched.folder / "site-2" / "job" / "secure-round.npz", ["noisy"])
                with Ledger(watched.folder / "site-2", create=False) as ledger:
                    row = ledger.rows()[-1]
                    assert row.round == number
                    assert ledger.holds(row, Share(kept["noisy"], row.events))
            if stage != "keys":
                further = watched.answer("site-2", further_attempt(message))
                assert further.has_error() == (stage == "open")
            if lived:
                break
            deaths[stage] += 1
    assert all(deaths[stage] * stride >= 4 for stage in STAGES), deaths


# --- A server that dies ---------------------------------------------------------------------------

POINTS = {
    "before it notes an attempt": (secure_rounds.SecureRounds, "_keep", False),
    "before it asks": (secure_rounds.SecureRounds, "_keep", True),
    "with all vectors": (secure.SecureSum, "openings", False),
    "with all openings": (secure.SecureSum, "slots", False),
    "before a round is over": (Coordinator, "close_round", False),
    "after a round": (Coordinator, "close_round", True),
}


@contextmanager
def dying(point: str, times: int):
    """Make a server die the n-th time that it reaches a point."""
    owner, name, after = POINTS[point]
    whole, calls = getattr(owner, name), itertools.count(1)

    def call(*arguments, **named):
        last = next(calls) == times
        if last and not after:
            raise Killed
        found = whole(*arguments, **named)
        if last:
            raise Killed
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_server_that_dies_at_any_point_goes_on_to_the_same_sums(tmp_path, watched, point, times):
    lost = {("site-4", "sum", 2)}  # so round 2 has another attempt
    with dying(point, times), pytest.raises(Killed):
        watched.server(run_dir=tmp_path / "run").start(Steady(watched, lost))
    begun = (tmp_path / "run" / CHECKPOINT).exists()
    assert begun or not watched.rows("site-1")
    watched.gone_on(tmp_path / "run", lost, resume=begun)
    assert watched.summed >= 3
    assert [row.round for row in watched.rows("site-1")] == [1, 2, 3]


def test_what_was_opened_before_a_server_died_is_added_up_when_sites_are_back(tmp_path, watched):
    with dying("with all openings", 1), pytest.raises(Killed):
        watched.server(run_dir=tmp_path / "run").start(Steady(watched))
    with pytest.raises(DPFactError, match="site-3"):
        watched.gone_on(tmp_path / "run", {("site-3", "sum", 1)})
    assert read_history(tmp_path / "run")[0].sites == tuple(NAMES[:4])  # site-3 was charged
    assert watched.gone_on(tmp_path / "run").records[0].dropped == ()


@pytest.mark.parametrize(
    ("times", "end", "says"), [(99, DPFactError, r"site-3.*site-4"), (3, Killed, "^$")],
    ids=["the run ends", "the server dies in the second attempt"],
)  # fmt: skip
def test_a_start_that_others_were_lost_from_is_made_again_with_whoever_is_there(
    tmp_path, watched, times, end, says
):
    lost = {("site-4", "sum 1", 1), ("site-3", "sum 2", 1)}
    with dying("before it asks", times), pytest.raises(end, match=says):
        watched.server(run_dir=tmp_path / "run").start(Steady(watched, lost))
    (record, *_) = watched.gone_on(tmp_path / "run", {("site-3", "sum", 1)}).records
    assert (record.sites, record.dropped) == (("site-1", "site-2", "site-4"), ("site-3",))


def test_a_run_that_began_with_fewer_sites_goes_on_with_these(tmp_path, watched):
    lost = {("site-4", "keys", 1)}
    with dying("before a round is over", 2), pytest.raises(Killed):
        watched.server(run_dir=tmp_path / "run").start(Steady(watched, lost))
    assert watched.gone_on(tmp_path / "run").records[1].sites == tuple(NAMES[:3])


def test_a_site_that_died_uncharged_takes_part_on_other_terms(tmp_path, watched, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    begun = watched.server(run_dir=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "charge", killed)
        with pytest.raises(Killed):
            begun.start(Steady(watched))
    assert (watched.folder / "site-1" / "job" / "secure-job.json").exists()
    made = watched.server(run_dir=tmp_path / "other")
    made.start(Steady(watched, {("site-4", "keys", 1)}))
    assert [record.sites for record in made.coordinator.records[:3]] == [tuple(NAMES[:3])] * 3


# --- A bad network --------------------------------------------------------------------------------


class Unsteady(Steady):
    """A grid that drops, delays, doubles, repeats and reorders messages, as drawn from a seed."""

    def __init__(self, watched: Watched, clock: Clock, rng: random.Random) -> None:
        super().__init__(watched)
        self.clock, self.rng = clock, rng
        self.rate, self.server_dies = rng.choice((0.02, 0.1, 0.3)), rng.choice((0.0, 0.05))
        self._due: list[tuple[float, int, Message, str, bool]] = []
        self._sent: list[Message] = []

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            if self.rng.random() < self.server_dies:
                raise Killed
            number = message.metadata.__dict__["_message_id"] = f"message-{len(self._sent)}"
            self._sent.append(message)
            numbers.append(number)
            self._draw(message, number)
        return numbers

    def _draw(self, message: Message, number: str) -> None:
        soon, ttl = self.rng.uniform(0, 5), message.metadata.ttl
        kinds = ("silent", "lost", "reply lost", "late", "twice", "old ones")
        kind = self.rng.choice(kinds) if self.rng.random() < self.rate else ""
        if kind == "late":
            soon = self.rng.uniform(0, 2 * ttl)
        if kind not in ("silent", "lost"):
            self._schedule(soon, message, number, answers=kind != "reply lost")
        if kind in ("lost", "reply lost"):
            gone = Message(Error(self.rng.choice((3, 5, 8)), "gone"), reply_to=message)
            self._replies[number] = gone
        if kind == "twice":
            self._schedule(self.rng.uniform(0, 2 * ttl), message, number, answers=True)
        if kind == "old ones":
            for old in self.rng.sample(self._sent, min(3, len(self._sent))):
                self._schedule(self.rng.uniform(0, ttl), old, "", answers=False)

    def _schedule(self, after: float, message: Message, number: str, *, answers: bool) -> None:
        place = self.clock.now + after, next(self._ids), message, number, answers
        heapq.heappush(self._due, place)

    def pull_messages(self, message_ids):
        while self._due and self._due[0][0] <= self.clock.now:
            _, _, message, number, answers = heapq.heappop(self._due)
            reply = self._deliver(message)
            if answers:
                self._replies.setdefault(number, reply)
        return super().pull_messages(message_ids)

    def repeat(self, most: int) -> None:
        """Ask again what was asked ever, in any order."""
        for message in self.rng.sample(self.asked, min(most, len(self.asked))):
            self._deliver(message)


def on_a_bad_network(folder, clock: Clock, seed: int) -> tuple[Watched, str]:
    """Play a run with up to three resumes, and return its result."""
    rng = random.Random(seed)
    number, vocabularies = 3 + seed % 10, make_vocabularies()
    data = [
        SiteData(name, count_tensor(15 + n, seed=n), vocabularies)
        for n, name in enumerate(ALL[:number])
    ]
    privacy = PRIVACY if rng.random() < 0.7 else replace(PRIVACY, secure_dropouts=0)
    watched, said = Watched(folder / "state", data), ""
    grid = Unsteady(watched, clock, rng)
    for _ in range(4):
        made, begun = None, (folder / "run" / CHECKPOINT).exists()
        try:
            made = watched.server(privacy=privacy, run_dir=folder / "run", resume=begun)
            made.start(grid)
            said = "finished"
            break
        except Killed:
            said = "killed"
        except DPFactError as error:
            said = str(error)
            assert said
    grid.repeat(30)
    if made is not None:
        watched.check_charges(made.coordinator)
        for record in made.coordinator.records[:-1]:
            assert record.updated or record.failures
    return watched, said


@pytest.mark.parametrize("seed", range(6))
def test_sums_are_right_and_paid_once_on_a_bad_network(tmp_path, clock, seed):
    on_a_bad_network(tmp_path, clock, seed)


@pytest.mark.nightly
def test_two_hundred_bad_networks(tmp_path, clock):
    ends = [on_a_bad_network(tmp_path / str(seed), clock, seed) for seed in range(6, 206)]
    assert [said for _, said in ends].count("finished") > 100
    assert sum(watched.summed for watched, _ in ends) > 300
