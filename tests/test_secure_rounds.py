"""Secure sums with Flower's messages: whole runs, failing sites, restarted servers."""

import json
import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message

from dpfact_flower.client_app import DPFactClient
from dpfact_flower.collect import MOST_ASKED
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import MessageError, QuorumError, StateError
from dpfact_flower.privacy import account
from dpfact_flower.privacy.secure_sum import keys
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.runtime.serve import _app_of
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.server.secure import Attempt, SecureSum
from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.store import close_jobs
from dpfact_flower.strategy import DPFact
from dpfact_flower.wire import records
from dpfact_flower.wire.secure import SecureStage
from tests.bits import assert_bits
from tests.conftest import CODES, count_tensor, make_vocabularies
from tests.ledgers import rows_in
from tests.site.federation import refusal

pytestmark = pytest.mark.usefixtures("clock")

SOLVER = SolverSettings(rank=3)
PRIVACY = PrivacySettings(
    epsilon=4.0, start_share=0.7, refine_rounds=1, bound=0.1, secure_sums=True, noise_seed=7,
    patients=200, secure_slots=2,
)  # fmt: skip
ROUNDS = 3  # with a release: the start, and a refinement of two modes
NAMES = [f"site-{number}" for number in range(1, 8)]


class Lossy(InProcessGrid):
    """A grid that loses messages: `lost` maps (site, stage, round) to the number of losses.

    With "reply" in place of the number, the site's reply is lost once. With "node", the site gets
    a new node once, as Flower gives it to a SuperNode that restarts without a key.
    """

    def __init__(self, app, names, lost=()) -> None:
        super().__init__(app, [{"partition-id": n} for n in range(len(names))])
        self.names = dict(zip(self._contexts, names, strict=True))
        self.lost = dict(lost)
        self.asked: list[tuple[str, str, int]] = []

    def _deliver(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node not in self.names:
            return Message(Error(5, "gone"), reply_to=message)
        site = self.names[node]
        config = records.read_request(message).config
        text = config.get("secure")
        stage = SecureStage.from_text(text).stage if text else message.metadata.message_type
        key = (site, stage, config["round"])
        left = self.lost.get(key, 0)
        self.asked.append(key)
        if left == "reply":
            self.lost[key] = 0
            super()._deliver(message)
        elif left == "node":
            self.lost[key], new = 0, 100 + node
            self.names[new], self._contexts[new] = self.names.pop(node), self._contexts.pop(node)
        elif not left:
            return super()._deliver(message)
        else:
            self.lost[key] = left - 1
        return Message(Error(3, "lost"), reply_to=message)


def sites(number: int = 7) -> list[SiteData]:
    lists, names = make_vocabularies(), enumerate(NAMES[:number], start=1)
    return [SiteData(name, count_tensor(20 + 3 * n, seed=n), lists) for n, name in names]


def simulated(tmp_path, number: int = 7, lost=()) -> Lossy:
    settings = SiteSettings(state_dir=str(tmp_path / "state"), allow_privacy="none,paper,patient")
    clients = [DPFactClient(s, settings, simulation=True, beside=NAMES) for s in sites(number)]
    return Lossy(_app_of(clients), NAMES[:number], lost)


def strategy(privacy=PRIVACY, *, number: int = 7, **options) -> DPFact:
    run = RunSettings(job="job", sites=number, min_sites=min(3, number), seed=3)
    given = {"solver": SOLVER, "privacy": privacy, "run": run, "durable": False, **options}
    return DPFact(tuple(CODES.values()), vocabulary=joint_digest(make_vocabularies()), **given)


def run(tmp_path, *, lost=(), number: int = 7) -> DPFact:
    """A whole run of simulated sites."""
    made = strategy(number=number)
    made.start(simulated(tmp_path, number, lost))
    return made


def charged_rounds(tmp_path, site: str) -> list[int]:
    return [row.round for row in rows_in(tmp_path / "state" / site)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The factors of a run without losses. Losses may change only the noise."""
    return run(tmp_path_factory.mktemp("whole")).coordinator.factors


@pytest.mark.slow
def test_a_run_learns_from_sums_and_charges_each_release_once(tmp_path, whole, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda f: synced.append(os.readlink(f"/proc/self/fd/{f}")))
    made = run(tmp_path)
    assert not any("secure" in name for name in synced)  # simulations do not wait for the disk
    assert made.coordinator.rule.plan.facts.sharing == (7, 1, 1, 2)
    assert_bits(made.coordinator.factors, whole)  # masks differ between runs, but sums do not
    for site in NAMES:
        rows = rows_in(tmp_path / "state" / site)
        assert [row.round for row in rows] == [1, 2, 3]
        events = [event for row in rows for event in row.events]
        assert all(event.own_sigma * 5**0.5 == pytest.approx(event.sigma) for event in events)
        guarantee = account(events, 1e-5)
        assert guarantee.headline.epsilon <= 4
        assert guarantee.alone.epsilon > 9
        assert "at most 1 of 7 sites collude" in guarantee.claim
        assert not any(row.payload_kept for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "number"), [("sum", 1), ("sum", 2), ("open", 1), ("open", 3)])
def test_a_site_that_is_lost_leaves_a_sum_of_the_others(tmp_path, stage, number):
    made = strategy()
    grid = simulated(tmp_path, lost={("site-4", stage, number): 99})
    again = ("site-5", "sum", number)
    after_each(grid, lambda _: again in grid.asked and grid.lost.setdefault(again, "node"))
    made.start(grid)
    record = made.coordinator.records[number - 1]
    lost_before = stage == "sum"
    assert record.updated
    assert ("site-4" in record.sites) is not lost_before
    assert [failure.who.split()[0] for failure in record.failures] == ["site-4"]
    asked = [key for key in grid.asked if key[2] == number and key[1] == "sum"]
    # Six sites are asked in two attempts. In the second, site-5 returns as another node.
    assert len(asked) == (MOST_ASKED + (number == 1) + 6 + 6 + 1 if lost_before else 7)
    for site in NAMES:
        wanted = [1, 2, 3]
        if lost_before and site == "site-4":
            wanted.remove(number)
        assert charged_rounds(tmp_path, site) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["keys", "sum", "open"])
def test_a_site_that_returns_as_another_node_is_in_the_sums(tmp_path, whole, stage):
    made, grid = strategy(), simulated(tmp_path, lost={("site-4", stage, 1): "node"})
    made.start(grid)
    assert_bits(made.coordinator.factors, whole)
    assert all(record.sites == tuple(NAMES) for record in made.coordinator.records)
    failed = [failure.who for record in made.coordinator.records for failure in record.failures]
    opens = stage == "open"  # which no new node is asked, because each site's shares differ
    assert failed == ["site-4 (node 5)"] * opens
    assert grid.asked.count(("site-4", stage, 1)) == 2 - opens


@pytest.mark.slow
def test_a_reply_that_is_lost_after_the_charge_is_sent_again_for_nothing(tmp_path, whole):
    lost = {("site-2", "sum", 1): "reply", ("site-3", "open", 2): "reply"}
    assert_bits(run(tmp_path, lost=lost).coordinator.factors, whole)
    assert charged_rounds(tmp_path, "site-2") == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("times", [3, 8])
def test_openings_that_come_late_leave_no_word_of_a_failure(tmp_path, times):
    made = run(tmp_path, lost={(site, "open", 1): times for site in NAMES[2:]})
    assert made.coordinator.records[0].updated
    assert made.coordinator.records[0].failures == ()


def test_a_site_that_drops_out_after_its_charge_is_on_record(tmp_path):
    grid = simulated(tmp_path, lost={("site-2", "sum", 1): 99})
    again = ("site-4", "sum", 1)  # which answers the first attempt, and no later one
    after_each(grid, lambda _: again in grid.asked and grid.lost.setdefault(again, 99))
    made = strategy(replace(PRIVACY, secure_dropouts=2))
    made.start(grid, num_rounds=1)
    (record,) = made.coordinator.records
    assert record.updated
    assert (len(record.sites), record.dropped) == (5, ("site-4",))
    assert made._secure._last.number == 3
    assert charged_rounds(tmp_path, "site-4") == [1]
    assert made.coordinator.request(2).answered == dict.fromkeys([*record.sites, "site-4"], 1)


@pytest.mark.parametrize(
    ("lost", "quorum", "way"),
    [(["site-2", "site-5"], 5, "are back"), (["site-5"], 7, "are back, or with a lower min-sites")],
)
def test_a_start_of_too_few_sites_is_made_of_all_once_they_are_back(tmp_path, lost, quorum, way):
    grid, made = simulated(tmp_path, lost={(site, "sum", 1): 99 for site in lost}), strategy()
    made.coordinator.run = replace(made.coordinator.run, min_sites=quorum)
    with pytest.raises(QuorumError, match=rf"{'.*'.join(lost)}.*once the sites {way}$"):
        made.start(grid)
    assert not (tmp_path / "state" / lost[0] / "ledger.sqlite").exists()
    grid.lost.clear()
    made.start(grid, num_rounds=1)
    assert made.coordinator.records[0].sites == tuple(NAMES)
    assert charged_rounds(tmp_path, "site-1") == [1]


@pytest.mark.slow
def test_a_round_of_refinement_that_cannot_be_summed_is_passed_over(tmp_path):
    made = run(tmp_path, lost={(site, "sum", 2): 99 for site in ("site-2", "site-5")})
    assert [record.updated for record in made.coordinator.records] == [True, False, True, True]
    paid = [site for site in NAMES if site not in ("site-2", "site-5")]
    assert made.coordinator.records[1].sites == tuple(paid)  # wasted, as the status shows


@pytest.mark.slow
def test_a_site_that_is_lost_before_its_key_is_not_in_the_plan(tmp_path):
    made, grid = strategy(), simulated(tmp_path, lost={("site-7", "keys", 1): 99})
    made.start(grid)
    assert ("site-7", "sum", 1) not in grid.asked
    assert made.coordinator.rule.plan.facts.sharing == (6, 1, 1, 2)
    assert made.coordinator.records[0].sites == tuple(NAMES[:6])
    assert made.coordinator.run.sites == 6
    answer, taken = records.answer([np.zeros(1, np.uint8)], 1, {"site": "site-7"}), {}
    made._secure._take(NAMES[:6], {8: Message(answer, 8, "train")}, 1, taken.__setitem__)
    assert not taken


@pytest.mark.parametrize(
    ("number", "short", "says", "why"),
    [(7, False, "in each of 3 attempts, a site failed to send its key", "no reply in time"),
     (3, True, "sites left: 2, but .* need 3", "member 'site-1': need 32 bytes of key")],
)  # fmt: skip
def test_a_run_without_everybodys_keys_says_why_it_ends(tmp_path, number, short, says, why):
    made = strategy(number=number)
    ask = made._sites.ask

    def damaged(*args, **options):
        """Each time, the first site's reply is lost, or has a key of one byte."""
        (node, _), *others = ask(*args, **options).items()
        parts = {"site": made._sites.names.of(node)}
        answer = records.answer([np.zeros(1, np.uint8)] * 2, 1, parts)
        return dict(others) | ({node: Message(answer, node, "train")} if short else {})

    made._sites.ask = damaged
    with pytest.raises(QuorumError, match=rf"^secure sums: {says}.* was charged: site-1: {why}"):
        made.start(simulated(tmp_path, number))


@pytest.mark.parametrize(("expected", "given", "later"), [(3, 0, 3), (7, 0, 2), (4, 5, 4)])
def test_a_run_goes_on_with_as_many_sites_as_it_began(tmp_path, caplog, expected, given, later):
    privacy = replace(PRIVACY, secure_sites=given)
    made = strategy(privacy, number=expected, run_dir=tmp_path / "run")
    made.start(simulated(tmp_path, 4), num_rounds=1)
    assert f"secure sums of 4 sites; {given or expected} were expected" in caplog.text
    again = strategy(privacy, number=later, run_dir=tmp_path / "run", resume=True)
    again.start(simulated(tmp_path, 4))
    assert again.coordinator.rule.plan.facts.sharing == (4, 1, 1, 2)
    assert all(record.updated for record in again.coordinator.records)


def test_a_rounds_time_to_the_quorum_is_that_of_the_vectors(tmp_path, clock):
    grid, came = simulated(tmp_path), []
    after_each(grid, came.append)
    after_each(grid, lambda _: clock.sleep(10.0 if grid.asked[-1][1] == "sum" else 1.0))
    made = strategy()
    made.start(grid, num_rounds=1)
    (record,) = made.coordinator.records
    assert ("site-1", "open", 1) in grid.asked
    assert record.quorum_seconds >= 70.0
    trained = [reply for reply in came if reply.metadata.message_type == "train"]
    assert record.bytes_up == sum(map(records.serialised_bytes, trained))  # keys as well


def test_a_slot_s_total_is_the_sum_of_its_sites_statistics(tmp_path, monkeypatch):
    near = replace(PRIVACY, epsilon=1e5, delta=1e-3)  # almost no noise
    totals = []
    for folder, privacy in ("a", near), ("b", replace(near, secure_sums=False, secure_slots=0)):
        made, learns = strategy(privacy), []
        learn = lambda _, found, learns=learns: learns.extend(found)  # noqa: E731
        monkeypatch.setattr(made.coordinator.rule, "update", learn)
        monkeypatch.setattr(made.coordinator, "check_learned", lambda: None)
        made.start(simulated(tmp_path / folder), num_rounds=1)
        totals.append([reply.arrays[0] for reply in learns])
    slots, own = totals
    assert len(slots) == 2
    for slot, total in enumerate(slots):
        np.testing.assert_allclose(total, sum(own[slot::2]), atol=0.05)
        assert np.abs(total).max() > 1


# --- Real sites with their own keys -----------------------------------------------------------


def after_each(grid, look) -> None:
    """Call a function with the reply to each message that the grid delivers."""
    deliver = grid._deliver

    def looked_at(message):
        found = deliver(message)
        look(found)
        return found

    grid._deliver = looked_at


def real_sites(tmp_path, number=3, **changed) -> list[DPFactClient]:
    lines = []
    for name in NAMES[:number]:
        pem = keys.new_signing_key()
        (tmp_path / f"{name}.pem").write_bytes(pem)
        (tmp_path / f"{name}.pem").chmod(0o600)
        lines.append(f"{name} {keys.public_text(keys.read_signing_key(pem))}")
    (tmp_path / "peers").write_text("# all of us\n" + "\n".join(lines) + "\n")
    return [DPFactClient(s, real_settings(tmp_path, s.name, **changed)) for s in sites(number)]


def real_settings(tmp_path, name: str, **changed) -> SiteSettings:
    given = {
        "state_dir": str(tmp_path / "state" / name), "allow_privacy": "patient",
        "max_epsilon": 4.0, "max_epsilon_alone": 40.0, "reply_after": 0.0,
        "secure_key": str(tmp_path / f"{name}.pem"), "secure_peers": str(tmp_path / "peers"),
    }  # fmt: skip
    return SiteSettings(**given | changed)


def grid_of(clients) -> Lossy:
    return Lossy(_app_of(clients), NAMES[: len(clients)])


REAL = replace(PRIVACY, noise_seed=-1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"secure_key": ""}, "secure-key: must be set"),
        ({"secure_peers": "peers"}, "secure-peers: must be set, to an absolute path"),
        ({"max_epsilon_alone": 0.0}, "max-epsilon-alone: set the largest"),
        ({"max_epsilon_alone": 5.0}, "max-epsilon-alone is 5"),
        ({"secure_min_sites": 4}, "secure-sites is 3 in this run; this site's secure-min-sites"),
        ({"secure_min_colluding": 2}, "secure-colluding is 1 in this run"),
        ({}, "secure-colluding is 1 in this run; this site's secure-min-colluding is 2"),
    ],
)
def test_what_a_hospital_did_not_allow_is_refused_before_anything(tmp_path, caplog, changed, says):
    clients = real_sites(tmp_path, **changed)
    for number in () if changed else range(3, 11):  # a tenth of eleven pinned keys is two
        clients[0].site.preflight(strategy(REAL, number=3).coordinator.request(1))
        peers = (tmp_path / "peers").read_text()
        (tmp_path / "peers").write_text(f"{peers}other-{number} {peers.split()[-1]}\n")
    with pytest.raises(QuorumError):
        strategy(REAL, number=3).start(grid_of(clients))
    assert says in caplog.text
    assert not list((tmp_path / "state").glob("*/*/ledger.sqlite"))


def test_a_stranger_s_key_among_the_members_is_refused(tmp_path, caplog):
    hospitals = real_sites(tmp_path)
    pem = keys.new_signing_key()
    (tmp_path / "site-2.pem").write_bytes(pem)
    lines = (tmp_path / "peers").read_text().splitlines()
    lines[2] = f"site-2 {keys.public_text(keys.read_signing_key(pem))}"
    (tmp_path / "peers-2").write_text("\n".join(lines))
    settings = real_settings(tmp_path, "site-2", secure_peers=str(tmp_path / "peers-2"))
    hospitals[1] = DPFactClient(sites(3)[1], settings)
    with pytest.raises(QuorumError):
        strategy(REAL, number=3).start(grid_of(hospitals))
    assert "not signed" in caplog.text
    assert not list((tmp_path / "state").glob("site-[13]/*/ledger.sqlite"))


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [("round.npz", lambda path: path.unlink(), "missing; ask the centre for a new job"),
     ("round.npz", lambda path: path.write_bytes(b"PK"), "damaged; ask the centre for a new job"),
     ("round.npz", lambda path: path.chmod(0o622), "round.npz: others may write to it"),
     ("job.json", lambda path: path.chmod(0o622), "job.json: others may write to it")],
)  # fmt: skip
def test_without_its_secrets_a_site_refuses_the_rest_of_the_round(
    tmp_path, caplog, name, spoil, says
):
    caplog.set_level("INFO")
    grid, own = grid_of(real_sites(tmp_path)), tmp_path / "state" / "site-1" / "site-1"
    grid.lost, kept = {("site-1", "sum", 1): "reply"}, own / "job" / f"secure-{name}"
    after_each(grid, lambda _: kept.exists() and spoil(kept))
    with pytest.raises(QuorumError):
        strategy(REAL, number=3).start(grid)
    assert says in caplog.text
    (row,) = rows_in(own)
    total = account(row.events, 1e-5)
    cost, alone = total.headline.epsilon, total.alone.epsilon
    assert f"; epsilon_spent {cost:.6f}, epsilon_alone_spent {alone:.6f}; ledger: 1:" in caplog.text


def test_a_site_answers_a_round_under_one_list_of_names_and_one_key(tmp_path, caplog):
    """Otherwise, a server could form two groups in a round, and open both sums with this site."""
    clients = {client.site.name: client for client in real_sites(tmp_path, 5, max_epsilon=9)}
    privacy = replace(REAL, secure_dropouts=1, secure_slots=1)
    first = strategy(privacy, number=4).coordinator.request(1)
    anchors = initial_factors(tuple(CODES.values()), 3, 0)
    second = replace(first, round=2, anchors=anchors, usages=np.ones((1, 2, 3)))

    def ask(site, request, stage):
        return clients[site].fit(*replace(request, secure=stage).to_wire())[0]

    def members(names, request):
        stage = SecureStage("keys", asked=names)
        found = {site: ask(site, request, stage) for site in names}
        return tuple(keys.Member(site, *map(bytes, parts)) for site, parts in found.items())

    def refused(stage):
        return refusal(clients["site-1"], replace(first, secure=stage), caplog)[1]

    one, other = tuple(NAMES[:4]), (*NAMES[:3], NAMES[4])
    pending = tmp_path / "state" / "site-1" / "site-1" / ".secure-job"
    assert "message: request: this round needs a secure sum" in refused(None)
    stage = SecureStage("sum", 1, members(one, first), one)
    members(one, replace(first, job="meanwhile"))
    assert "state: secure sum: this site has no key for this job, perhaps" in refused(stage)
    stage = SecureStage("sum", 1, members(one, first), one)
    for attempt in (1, 2):
        opening = refused(replace(stage, stage="open", attempt=attempt))
        assert "privacy-refused: secure sum: only the last attempt of a round can be op" in opening
        ask("site-1", first, stage)
    members(one, first)
    assert not pending.exists()  # the key lies in the job's folder alone
    members(one, replace(first, job="meanwhile"))
    ask("site-1", first, replace(stage, attempt=2, asked=one[:3]))
    assert pending.exists()  # which is the other run's key
    stage = SecureStage("sum", 2, members(other, second), other)
    assert "was answered with another key" in refused(stage)
    renamed = (*stage.members[:3], replace(stage.members[3], site="site-9"))
    stage = SecureStage("sum", 2, renamed, tuple(m.site for m in renamed))
    assert "the job began with different terms" in refused(stage)


@pytest.mark.parametrize(
    ("context", "size", "says"),
    [(b"", -1, "bytes, got"), (b"", 1, "bytes, got"),
     *((context, 0, "'site-1': answers another request") for context in (b"", b"\xff" * 64))],
)  # fmt: skip
def test_a_vector_that_does_not_fit_is_not_added_up(context, size, says):
    made = strategy(number=3).coordinator
    planned = made.planned_release(1)
    members = tuple(keys.Member(name, bytes(32), bytes(64)) for name in NAMES[:3])
    adding = SecureSum(members, Attempt(0, 0, ()), made.request(1), planned)
    words = bytes(planned.count * made.secure.slots * adding._question.width + size)
    with pytest.raises(MessageError, match=says):
        adding.take_vector("site-1", [context, words, b"{}"])
    assert not adding.complete
    assert not adding.charged


def test_a_shared_refinement_takes_the_usages_of_the_sites_slot():
    """It does not use the site's own start, because only the sum is known."""
    members = tuple(keys.Member(name, bytes(32), bytes(64)) for name in NAMES)
    asked = replace(
        strategy().coordinator.request(1), round=2, solver=replace(SOLVER, relative_l21=1.0),
        anchors=initial_factors(tuple(CODES.values()), 3, 0),
        secure=SecureStage("sum", 1, members, tuple(NAMES)),
    )  # fmt: skip
    site = sites()[0]

    def total(usages, solver=asked.solver):
        request = replace(asked, usages=usages and np.asarray(usages, float), solver=solver)
        work = PatientRound(site.vocabularies, request, site=NAMES[0], simulation=True)
        return work.bounded(site, work.planned, None).total

    little, much = ([[1, 4, 9], [0, 0, 0]], [[9, 4, 1], [0, 0, 0]])
    assert (total([little, much]) == total([little, little])).all()
    assert (total([little, much]) != total([much, much])).any()
    with pytest.raises(MessageError, match=r"needs \(2, 2, 3\) usages of slots"):
        total(None)
    total(None, replace(SOLVER, relative_l21=0.0))  # needs no usages
    one = strategy(replace(PRIVACY, codes="2x2")).coordinator.request(1)  # neither does this
    PatientRound(site.vocabularies, replace(one, secure=asked.secure), site="", simulation=True)


@pytest.mark.slow
@pytest.mark.parametrize("closes", [False, True], ids=["the run ends", "the hospital closes it"])
def test_a_job_s_key_lies_in_its_folder_alone_and_goes_with_it(tmp_path, closes):
    own, grid, seen = tmp_path / "state/site-1/site-1", grid_of(real_sites(tmp_path)), []

    def look(_):
        if (own / "job" / "secure-job.json").exists():
            (own / "job" / ".secure-round.npz.x1").touch()  # left by a process that was killed
            key = json.loads((own / "job" / "secure-job.json").read_text())["key"].encode()
            seen.append((key, holding(key)))
            if closes:
                for name in (".secure-job", "..secure-job.x1"):  # another run's key, and its copy
                    (own / name).write_bytes(key)
                close_jobs(own)

    def holding(secret):
        folders = set()
        for path in own.rglob("*"):
            with suppress(OSError):  # a folder, or a temporary file that has just been renamed
                folders |= {path.parent.name} if secret in path.read_bytes() else set()
        return folders

    after_each(grid, look)
    made = strategy(REAL, number=3)
    made.start(grid)
    assert all(record.updated for record in made.coordinator.records) != closes
    assert {tuple(folders) for _, folders in seen} == {("job",)}
    assert holding(seen[0][0]) == set()  # the run has ended
    assert not list((own / "job").glob("*secure-*"))


def test_the_vector_is_in_no_reply_and_no_folder_of_the_run(tmp_path):
    grid, sent = simulated(tmp_path, 3), []

    def watch(reply):
        sent.append(reply)
        if path.exists():
            with np.load(path) as kept:
                vectors.append(kept["noisy"].tobytes())

    path, vectors = tmp_path / "state" / "site-1" / "job" / "secure-round.npz", []
    after_each(grid, watch)
    made = strategy(number=3, run_dir=tmp_path / "run")
    made.start(grid)
    sharing = made.coordinator.rule.plan.facts.sharing
    assert sharing == (3, 1, 0, 2)  # one attempt, and nothing to open
    assert {stage for _, stage, _ in grid.asked} == {"query", "keys", "sum", "train"}
    vector = vectors[-1]
    assert len(vector) > 100
    for message in sent:
        if not message.has_error():
            for array in records.read_reply(message).arrays:
                assert vector[:64] not in array.tobytes()
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or vector[:64] not in path.read_bytes()
    kept = json.loads((tmp_path / "run" / "secure.json").read_text())
    assert SecureStage.from_text(kept["stage"]).names == tuple(NAMES[:3])


def test_a_disk_error_at_the_server_is_one_line(tmp_path):
    (tmp_path / "run" / "secure.json").mkdir(parents=True)
    with pytest.raises(StateError, match="run: need a file"):
        strategy(number=3, run_dir=tmp_path / "run").start(simulated(tmp_path, 3))
