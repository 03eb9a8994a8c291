"""Before any charge, real sites are asked whether they would answer."""

import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo

from dpfact_flower.client_app import app as client_app
from dpfact_flower.errors import QuorumError, StateError
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server import readiness
from dpfact_flower.server.history import CHECKPOINT
from dpfact_flower.server.readiness import READINESS, Readiness, judge, read_readiness
from dpfact_flower.server.status import run_status
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.strategy import DPFact
from dpfact_flower.wire import records
from tests.ledgers import rows_in
from tests.runtime.deployment import site_config
from tests.test_strategy import FakeGrid, make_strategy, reply

SITES = ("site-1", "site-2", "site-3")


@pytest.fixture
def own(cohort_folder, tmp_path) -> list[dict]:
    """Each hospital's node config."""
    own = {"allow-privacy": "patient", "max-epsilon": 4.1}
    return [site_config(cohort_folder, tmp_path, site, **own) for site in SITES]


@pytest.fixture
def without_noise(own) -> list[dict]:
    return [{**each, "allow-privacy": "none", "max-epsilon": 0.0} for each in own]


def run_of(cohort, folder, **run) -> DPFact:
    return DPFact(
        cohort.sites[0].tensor.feature_shape, solver=SolverSettings(rank=4, relative_l21=0.0),
        privacy=PrivacySettings(epsilon=4.0, refine_rounds=1, patients=95),
        run=RunSettings(**{"sites": 3, "min_sites": 2, **run}),
        vocabulary=cohort.vocabularies, run_dir=folder,
    )  # fmt: skip


FAULTS = {
    "another mode": ({"allow-privacy": "none", "max-epsilon": 0.0}, "dpfact:privacy-refused"),
    "a small budget": ({"max-epsilon": 1.0}, "dpfact:privacy-refused"),
    "a small limit": ({"max-rank": 2}, "dpfact:message"),
    "no data": ({"data-path": "/absent.npz"}, "dpfact:data"),
    "no state": ({"state-dir": ""}, "dpfact:settings"),
    "a misspelt key": ({"max-epsilom": 1.0}, "dpfact:settings"),
}


@pytest.mark.parametrize(("changes", "code"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_site_stops_the_run_before_anybody_pays(cohort, own, tmp_path, changes, code):
    own[1].update(changes)
    says = rf"nothing was charged: site-2 \(node 3\): error 2: {code}: "
    with pytest.raises(QuorumError, match=says) as raised:
        run_of(cohort, tmp_path / "run").start(InProcessGrid(client_app, own))
    assert str(raised.value).count("node ") == 1
    assert 'preflight = "leave-out"' in str(raised.value)
    assert not list(tmp_path.rglob("ledger.sqlite"))
    assert not (tmp_path / "run" / CHECKPOINT).exists()  # the run can simply be started again
    said = read_readiness(tmp_path / "run")
    assert [each.site for each in said] == [*SITES]
    assert [bool(each.fault) for each in said] == [False, True, False]


def test_a_site_with_other_code_lists_stops_the_run_before_anybody_pays(
    cohort, own, tmp_path, caplog
):
    site = cohort.sites[1]
    other = tuple(lists.select(reversed(range(len(lists)))) for lists in site.vocabularies)
    replace(site, vocabularies=other).save(own[1]["data-path"])
    with pytest.raises(QuorumError, match=r"site-2 .*: dpfact:message: it has other code lists"):
        run_of(cohort, None).start(InProcessGrid(client_app, own))
    assert not list(tmp_path.rglob("ledger.sqlite"))
    assert "no registered name" not in caplog.text  # in one process, there is no registration


@pytest.mark.slow
def test_a_run_may_begin_without_faulty_sites_and_needs_its_quorum_of_others(cohort, own, tmp_path):
    own[1]["max-rank"] = 2
    strict = run_of(cohort, None, preflight="leave-out", min_sites=3)
    with pytest.raises(QuorumError, match=r"2 site\(s\) are ready, .* is 3"):
        strict.start(InProcessGrid(client_app, own))
    assert not list(tmp_path.rglob("ledger.sqlite"))
    run = run_of(cohort, None, preflight="leave-out")
    run.start(InProcessGrid(client_app, own))
    first, second, *_ = run.coordinator.records
    for record in first, second:
        assert (record.sites, record.failures) == (("site-1", "site-3"), ())


def test_without_a_preflight_good_sites_pay_before_the_fault_is_seen(cohort, own, tmp_path):
    own[1]["max-rank"] = own[2]["max-rank"] = 2
    with pytest.raises(QuorumError, match="continue with resume = true"):
        run_of(cohort, tmp_path / "run", preflight="off").start(InProcessGrid(client_app, own))
    assert len(list(tmp_path.rglob("ledger.sqlite"))) == 1
    assert not (tmp_path / "run" / READINESS).exists()


def start_with(cohort, out, grid, *, resume=False, rounds=None):
    """Begin or resume a run without noise."""
    run = DPFact(
        cohort.sites[0].tensor.feature_shape, solver=SolverSettings(rank=4),
        privacy=PrivacySettings(privacy="none"), run_dir=out, resume=resume,
        run=RunSettings(rounds=4, sites=3, job="j", wait_timeout=5.0),
    )  # fmt: skip
    run.start(grid, num_rounds=rounds)


@pytest.mark.slow
def test_a_site_that_was_set_back_is_found_before_anybody_is_asked(cohort, without_noise, tmp_path):
    out, state = tmp_path / "run", tmp_path / "state-site-2"
    start_with(cohort, out, InProcessGrid(client_app, without_noise), rounds=1)
    shutil.copytree(state, tmp_path / "backup")
    start_with(cohort, out, InProcessGrid(client_app, without_noise), resume=True, rounds=3)
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    with pytest.raises(QuorumError, match=r"^no round .* in this attempt.*: error 2: dpfact:state"):
        start_with(cohort, out, InProcessGrid(client_app, without_noise), resume=True)
    (note,) = state.rglob("*LACKS-ROUNDS.txt")
    assert "has answered round 3 of job 'j'" in note.read_text()


@pytest.mark.slow
def test_sites_have_time_to_get_over_a_killed_run(cohort, without_noise, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    grid = InProcessGrid(client_app, without_noise)
    send, times = grid.push_messages, []

    def noting(messages):
        times.extend(m.metadata.ttl for m in messages if m.metadata.message_type == "query")
        return send(messages)

    grid.push_messages = noting
    start_with(cohort, tmp_path / "run", grid, rounds=1)
    assert "may need three minutes" not in caplog.text
    start_with(cohort, tmp_path / "run", grid, resume=True)
    assert times == [5.0] * 3 + [180.0] * 3
    assert "may need three minutes" in caplog.text


def test_sites_that_are_not_there_or_cannot_be_asked(caplog):
    """An app without our query may continue, because a refusal in the first round costs nothing."""
    grid = FakeGrid({0: reply("a"), 1: reply("b")})
    strategy = make_strategy(rounds=1)
    strategy.start(grid)
    assert strategy.coordinator.records[0].sites == ("a", "b")
    grid = FakeGrid({0: reply("a"), 1: reply("b")})
    deliver = grid._deliver

    def gone(message):
        answer = deliver(message)
        if message.metadata.dst_node_id == 3:
            answer.__dict__["_error"] = Error(5, "node unavailable")
        return answer

    grid._deliver = gone
    with pytest.raises(QuorumError, match="charged: node 3: its SuperNode has disconnected"):
        make_strategy().start(grid)


def test_what_may_stop_a_run_later_is_warned_of(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    found = [
        Readiness(2, "north", "", "0.1.0", -3.0),  # just accepted
        Readiness(3, "south", "", "0.0.9", -130.0),
        Readiness(4, "east", "", "0.2.0", 7.0),
        Readiness(5, "west"),  # says nothing of either
    ]
    monkeypatch.setattr(readiness, "version", lambda _: "0.1.0")
    assert judge(found, quorum=3, leave_out=False) == frozenset()
    assert caplog.messages == [
        "preflight: south (node 3) has version 0.0.9 of dpfact-flower; the server has 0.1.0",
        "preflight: south (node 3): its clock is 130 s behind; use NTP",
        "preflight: east (node 4) has version 0.2.0 of dpfact-flower; the server has 0.1.0",
        "preflight: east (node 4): its clock is 7 s ahead; use NTP",
        "preflight: 4 site(s) ready",
    ]
    caplog.clear()
    assert judge([*found[:1] * 3, Readiness(6, fault="late")], quorum=2, leave_out=True) == {6}
    assert caplog.messages == ["preflight: node 6: late", "preflight: 3 site(s) ready, 1 not"]


class Registered(InProcessGrid):
    """A grid whose SuperLink has keys registered with names, with one lying hospital.

    The liar answers each question under another hospital's name, with valid replies.
    """

    def __init__(self, own: list[dict], liar: int, shapes, names=()) -> None:
        own.insert(liar, {})
        super().__init__(client_app, own)
        self.names = dict(zip(self._contexts, names, strict=False))
        self.liar, self.shapes = list(self._contexts)[liar], shapes
        self.says: dict[str, str] = {"site": SITES[0]}

    def get_nodes(self):
        return [NodeInfo(node_id=n, name=self.names.get(n)) for n in self._contexts]

    def _deliver(self, message: Message) -> Message:
        meta = message.metadata
        if meta.dst_node_id != self.liar:
            return super()._deliver(message)
        asked = [] if meta.message_type == "query" else self.shapes(int(meta.group_id))
        arrays = [np.zeros(shape, np.float32) for shape in asked] or [np.empty(0, np.float32)]
        return Message(records.answer(arrays, 1, self.says), reply_to=message)


def liars_run(cohort, own, tmp_path, liar, *, names=(), **run):
    it = run_of(cohort, tmp_path / "run", sites=4, **run)
    return it, Registered(own, liar, it.coordinator.rule.reply_shapes, names)


@pytest.mark.parametrize("liar", [0, 3])
def test_two_hospitals_of_one_name_are_both_named_before_anybody_pays(cohort, own, tmp_path, liar):
    run, grid = liars_run(cohort, own, tmp_path, liar, min_sites=1)
    with pytest.raises(QuorumError, match="nothing was charged") as raised:
        run.start(grid)
    north = list(grid._contexts)[1 if liar == 0 else 0]
    assert f"node {grid.liar}: calls itself 'site-1', as node {north} does" in str(raised.value)
    assert f"node {north}: calls itself 'site-1', as node {grid.liar} does" in str(raised.value)
    assert not list(tmp_path.rglob("ledger.sqlite"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["leave-out", "off"])
@pytest.mark.parametrize("liar", [0, 3])
def test_a_name_belongs_to_the_key_that_is_registered_with_it(cohort, own, tmp_path, liar, how):
    """Otherwise, one hospital could cause charges at another for replies that are not used."""
    names = list(SITES)
    names.insert(liar, "liar")
    run, grid = liars_run(cohort, own, tmp_path, liar, names=names, preflight=how)
    run.start(grid)
    told = run.coordinator.records
    assert all(record.sites == SITES for record in told)
    paid = sum(bool(run.coordinator.rule.planned_events(record.round)) for record in told)
    charged = [row for row in rows_in(tmp_path / "state-site-1" / "site-1") if row.events]
    assert len(charged) == paid > 0
    asked = [failure for record in told for failure in record.failures]
    if how == "off":
        assert {failure.who for failure in asked} == {f"liar (node {grid.liar})"}
        assert {failure.reason for failure in asked} == {
            "calls itself 'site-1', but its key is registered as 'liar'"
        }


def test_what_a_hospital_says_is_one_short_printable_line(cohort, own, tmp_path, caplog):
    """Its text appears in the centre's log, in the error, in the run's folder and in `status`."""
    evil = (
        "x\x1b[2J\r\n2026-11-24 INFO preflight: 6 site(s) ready\n\x1b]0;owned\x07\u202e"
        + "A" * 2**21
    )
    caplog.set_level(logging.INFO)

    class Hostile(Registered):
        def _deliver(self, message: Message) -> Message:
            if message.metadata.dst_node_id == 3:
                return Message(Error(2, evil), reply_to=message)
            return super()._deliver(message)

    run = run_of(cohort, tmp_path / "run")
    grid = Hostile(own, 3, run.coordinator.rule.reply_shapes)
    grid.says = {"site": "liar", "version": evil}
    with pytest.raises(QuorumError) as raised:
        run.start(grid)
    with pytest.raises(StateError) as stated:
        run_status(tmp_path / "run")
    kept = (tmp_path / "run" / READINESS).read_text()
    lines = [record.getMessage() for record in caplog.records if "dpfact" in record.name]
    assert any("has version x" in line for line in lines)
    answers = map(str, read_readiness(tmp_path / "run"))
    for text in (*lines, str(raised.value), str(stated.value), *answers):
        assert text.isprintable()
        assert len(text) < 1500
    assert len(kept) < 4000
