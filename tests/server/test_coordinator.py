"""The server's part of a run: quorum, bit-exact checkpoints, history."""

import errno
import os
import random
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from dpfact_flower import DPFact
from dpfact_flower.errors import DataError, QuorumError, SettingsError, StateError
from dpfact_flower.server import coordinator as coordinator_module
from dpfact_flower.server import history
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.elastic import elastic_average
from dpfact_flower.server.history import CHECKPOINT, HISTORY, Failure, RoundRecord, read_history
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.wire.protocol import SiteReply
from tests.bits import assert_bits

SHAPE = (5, 4)
SOLVER = SolverSettings(rank=3)
PRIVACY = PrivacySettings(privacy="none")
PULL = {"solver": "psgd", "eta": 1e-2, "gamma": 5.0}
"""A step of 0.05 per site: stable up to 20 sites."""


def make(folder=None, *, resume=False, shape=SHAPE, **changes) -> Coordinator:
    parts = {"solver": SOLVER, "privacy": PRIVACY, "run": RunSettings(rounds=6, start="random")}
    for name, part in parts.items():
        own = {key: value for key, value in changes.items() if hasattr(part, key)}
        parts[name] = replace(part, **own)
    return Coordinator(
        shape, **parts, vocabulary=changes.get("vocabulary", "0a,1b"), run_dir=folder, resume=resume
    )


def make_reply(site: str, round_number: int, shape=SHAPE) -> SiteReply:
    """Make a site's reply, with arbitrary factors that are the same for the same request."""
    rng = np.random.default_rng([round_number, *site.encode()])
    arrays = (rng.standard_normal((size, 3)).astype(np.float32) for size in shape)
    return SiteReply(site, tuple(arrays))


def close(coordinator: Coordinator, number: int, sites="cab", failures=()) -> RoundRecord:
    replies = [make_reply(site, number, [len(f) for f in coordinator.factors]) for site in sites]
    return coordinator.close_round(
        number, replies, failures, bytes_down=10 * number, bytes_up=number, seconds=number / 7
    )


def run_rounds(coordinator: Coordinator, last: int) -> Coordinator:
    for number in range(coordinator.finished_rounds + 1, last + 1):
        failures = [Failure("node 7", "no reply within 9 s")] if number == 2 else []
        close(coordinator, number, failures=failures)
    return coordinator


@pytest.fixture(autouse=True)
def one_moment(monkeypatch):
    """All rounds end at the same time, so that runs can be compared byte by byte."""
    monkeypatch.setattr(coordinator_module, "utc_now", lambda: "2026-01-01T00:00:00+00:00")


def test_a_job_is_named_if_nobody_named_it():
    named, one, other = make(job="mine"), make(), make()
    assert (named.run.job, one.run.job[:4], len(one.run.job)) == ("mine", "job-", 16)
    assert one.run.job != other.run.job
    assert one.request(1).job == one.run.job


def test_unknown_options_and_missing_modes_are_refused_and_missing_code_lists_warned_of(caplog):
    with pytest.raises(TypeError, match="unexpected keyword argument 'privcy'"):
        DPFact((3, 4), privcy=PRIVACY)
    with pytest.raises(SettingsError, match="feature_shape: need at least one feature mode"):
        DPFact(())
    make(privacy="patient")
    assert "vocabulary" not in caplog.text
    make(privacy="patient", vocabulary="")
    assert "vocabulary: not given" in caplog.text


@pytest.mark.parametrize("name", ["solver", "privacy", "run"])
def test_settings_are_objects(name):
    kind = f"{name.capitalize()}Settings"
    for strategy in (Coordinator, DPFact):
        for wrong, said in (("none", "'none'"), ({}, "{}")):
            with pytest.raises(SettingsError, match=rf"DPFact: need {kind}\(...\), got {said}"):
                strategy((3, 4), **{name: wrong})


UNSTABLE = ({**PULL, "sites": 21}, {**PULL, "min_sites": 21}, {"sites": 4, "elastic_step": 0.3})


@pytest.mark.parametrize("changes", UNSTABLE, ids=["expected sites", "quorum", "elastic-step"])
def test_an_unstable_pull_is_refused_before_the_start(changes, tmp_path):
    with pytest.raises(SettingsError, match="elastic-step"):
        make(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
    coordinator = make(elastic_step=0.3)
    coordinator.check_connected(3, first=True)
    with pytest.raises(SettingsError, match=r"0\.3 \* 4 = 1\.2"):  # the number of sites is known
        coordinator.check_connected(4, first=True)
    coordinator.check_connected(4, first=False)  # a fourth site may join later


def test_the_first_round_needs_its_quorum_and_later_ones_go_on(caplog):
    coordinator = make(sites=4, min_sites=3, wait_timeout=7.0, vocabulary="")
    coordinator.rule.check_sites = Mock()
    for sites in (4, 5):
        coordinator.check_connected(sites, first=True)
    assert caplog.text == ""
    with pytest.raises(QuorumError, match=r"^2 site\(s\) connected within 7 s .* is 3$"):
        coordinator.check_connected(2, first=True)
    for sites in (3, 2, 0):
        coordinator.check_connected(sites, first=sites == 3)
        assert f"{sites} of 4 sites take part; continuing" in caplog.text
    coordinator.rule.check_sites.assert_called_once_with(5)


def test_a_round_beyond_those_planned_is_not_asked_for():
    coordinator = make(rounds=2)
    coordinator.request(2)
    with pytest.raises(SettingsError, match=r"has 2, but Flower began round 3.* remaining"):
        coordinator.request(3)


# --- closing a round


def test_a_round_is_one_elastic_pull():
    coordinator = make(**PULL)
    before = coordinator.factors
    record = close(coordinator, 1)
    replies = [make_reply(site, 1).arrays for site in "abc"]
    assert_bits(coordinator.factors, elastic_average(before, replies, 0.05))
    assert record == RoundRecord(1, ("a", "b", "c"), (), True, 10, 1, 1 / 7)
    assert (coordinator.records, coordinator.finished_rounds) == ([record], 1)


def test_the_order_of_replies_does_not_change_a_bit():
    sites, sorted_run = [f"s{n:02d}" for n in range(12)], make()
    expected = close(sorted_run, 1, sites)
    for seed in range(4):
        run = make()
        assert close(run, 1, random.Random(seed).sample(sites, 12)) == expected
        assert_bits(run.factors, sorted_run.factors)


@pytest.mark.parametrize("sites", ["", "a"])
def test_below_the_quorum_nothing_moves_and_the_record_says_so(sites, caplog):
    coordinator = make(min_sites=2)
    before = coordinator.factors
    replies = [make_reply(site, 1) for site in sites]
    record = coordinator.close_round(1, replies, (), quorum_seconds=5.0)
    assert_bits(coordinator.factors, before)
    assert not record.updated
    assert record.quorum_seconds == 0.0
    assert record.sites == tuple(sites)
    assert f"{len(sites)} usable replies, the quorum is 2" in caplog.text
    assert not close(coordinator, 2, "abb").updated  # two sites with one name do not count
    assert close(coordinator, 3, "ab").updated


def test_sites_of_one_name_are_all_left_out(caplog):
    coordinator = make(min_sites=2)
    failure = Failure("node 7", "gone")
    record = close(coordinator, 1, "abcbdbee", [failure])
    assert record.sites == ("a", "c", "d")
    said = "{} sites have the name {!r}; none of them is used".format
    assert record.failures == (failure, Failure("b", said(3, "b")), Failure("e", said(2, "e")))
    alone = make(min_sites=2)
    close(alone, 1, "acd")
    assert_bits(coordinator.factors, alone.factors)
    assert "have the name 'b'" in caplog.text


def test_check_learned():
    coordinator = make(min_sites=2)
    with pytest.raises(QuorumError, match=r"quorum of 2 site\(s\)$"):
        coordinator.check_learned()
    for number in (1, 2):
        close(coordinator, number, "a", [Failure("node 6", "late")])
    close(coordinator, 3, "a", [Failure("node 7", "gone"), Failure("node 8", "dpfact:data")])
    with pytest.raises(QuorumError, match=r"\): node 7.*:data\. .* last round$") as raised:
        coordinator.check_learned()
    assert raised.value.reasons == ("node 7: gone", "node 8: dpfact:data")
    close(coordinator, 4, "ab")
    close(coordinator, 5, "")
    coordinator.check_learned()
    counting = make(start="auto", shape=(2500, 2500))
    counting.close_round(1, [SiteReply("a", (np.ones(5000, np.float32),))], [])
    with pytest.raises(SettingsError, match=r"^num_rounds: .* 1 round\(s\) .* no phenotypes yet"):
        counting.check_learned()


def test_history_has_a_line_a_round_that_reads_as_the_record(tmp_path):
    coordinator = make(tmp_path, min_sites=3)
    for number, sites in enumerate(("abc", "a", "abcd"), start=1):
        close(coordinator, number, sites, [Failure("node 7", "no\nnewline ü")])
        assert read_history(tmp_path) == coordinator.records
        assert len((tmp_path / HISTORY).read_bytes().splitlines()) == number
    assert [record.updated for record in read_history(tmp_path)] == [True, False, True]


@pytest.mark.parametrize("damage", [b"", b'{"round": 1'])
def test_whoever_goes_on_finds_the_whole_history(tmp_path, damage):
    done, path = run_rounds(make(tmp_path), 3), tmp_path / HISTORY
    whole = path.read_bytes()
    with pytest.raises(DataError, match=r"jsonl: cannot be read \(No such file or directory\); is"):
        read_history(tmp_path / "other")
    path.write_bytes(damage)
    if damage:
        with pytest.raises(DataError, match=r"history\.jsonl: damaged; a run with resume = true"):
            read_history(tmp_path)
    found = make(tmp_path, resume=True, min_sites=2, sites=3, round_timeout=5.0)  # may change
    assert (found.records, found.run.min_sites) == (done.records, 2)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("given", [{}, {"durable": False}])
def test_checkpoint_and_history_are_waited_for_where_they_should_be(tmp_path, monkeypatch, given):
    waited, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda f: (waited.add(os.fstat(f).st_ino), fsync(f)))
    run = RunSettings(start="random")
    coordinator = Coordinator(SHAPE, privacy=PRIVACY, run=run, run_dir=tmp_path, **given)
    for number in (1, 2):
        waited.clear()
        coordinator.close_round(number, [], [])
        written = {(tmp_path / name).stat().st_ino for name in (CHECKPOINT, HISTORY)}
        assert (written <= waited) is not bool(given)
        assert not given or not waited


@pytest.mark.parametrize("split", [1, 3, 5])
def test_a_run_goes_on_bit_for_bit(tmp_path, split):
    whole = run_rounds(make(tmp_path / "whole", job="j"), 6)
    first = run_rounds(make(tmp_path / "in" / "parts", job="j"), split)
    first.begin()
    second = make(tmp_path / "in" / "parts", job="j", resume=True)
    assert second.finished_rounds + 1 == second.asked_rounds == first.asked_rounds == split + 1
    run_rounds(second, 6)
    assert_bits(second.factors, whole.factors)
    assert second.records == whole.records
    histories = [(tmp_path / name / HISTORY).read_bytes() for name in ("whole", "in/parts")]
    assert histories[0] == histories[1]
    one, other = (dict(np.load(tmp_path / name / CHECKPOINT)) for name in ("whole", "in/parts"))
    assert_bits(one.values(), [other[name] for name in one])


def test_secure_sums_go_on_with_their_sites_and_say_so_where_others_are_asked_for(tmp_path, caplog):
    options = {"privacy": "patient", "secure_sums": True, "sites": 5}
    make(tmp_path, start_share=0.6, refine_rounds=2, bound=0.2, **options).begin()
    for given in ({"bound": float("0")}, {"sites": 0}, {"sites": 7}, {"secure_sites": 7}):
        caplog.clear()
        assert make(tmp_path, resume=True, **options | given).secure.sites == 5
        said = "of 5 sites, as when the run began; 7 were exp" in caplog.text
        assert caplog.text.count("were exp") == said == (7 in given.values())
    others = [("start-share;", "start_share", 0.8), (".*secure-sites,", "secure_sums", False)]
    for keys, name, value in others:
        with pytest.raises(StateError, match=f"differs in {keys}"):
            make(tmp_path, resume=True, **options | {name: value})


def test_a_run_goes_on_from_before_its_first_round(tmp_path):
    whole = run_rounds(make(tmp_path / "whole", job="j"), 6)
    first = make(tmp_path / "parts", job="j")
    first.begin()
    asked = first.request(1)
    again = make(tmp_path / "parts", resume=True)
    assert (again.resumed, again.finished_rounds) == (True, 0)
    assert first.asked_rounds == again.asked_rounds == 1  # sites may have been charged
    assert again.request(1).digest == asked.digest  # so sites resend charged answers
    run_rounds(again, 6)
    again.begin()  # the existing file has more than this would write
    assert_bits(again.factors, whole.factors)
    finished = make(tmp_path / "parts", resume=True)
    assert finished.finished_rounds == finished.asked_rounds == 6


def test_a_missed_start_is_on_record_until_whoever_goes_on_has_made_it_again(tmp_path):
    options, sent = {"min_sites": 2, "start": "auto"}, {"bytes_down": 2, "bytes_up": 4}  # round 1
    it, gone = make(tmp_path, **options), Failure("node 7", "no reply")
    ones, asked = (np.ones(it.rule.reply_shapes(1)[0], np.float32),), it.request(1).digest
    it.begin()
    attempts = (("a", (), ()), ("b", "bc", ("a", "c")))
    for n, (site, charged, dropped) in enumerate(attempts, start=1):
        with pytest.raises(QuorumError, match="continue with resume = true"):
            it.close_round(1, [SiteReply(site, ones)], [gone], charged=charged, **sent)
        record = RoundRecord(1, (site,), (gone,), False, 2 * n, 4 * n, 0.0, dropped=dropped)
        it = make(tmp_path, resume=True, **options)
        assert (it.finished_rounds, read_history(tmp_path)) == (0, [record])
        assert it.request(1).digest == asked
        assert it.request(1).answered == dict.fromkeys((site, *dropped), 1)
    record = it.close_round(1, [SiteReply(site, ones) for site in "cd"], [])
    assert (record.updated, record.bytes_down, record.bytes_up) == (True, 4, 8)
    assert record.answers == [("c", 1, True), ("d", 1, True), ("a", 1, False), ("b", 1, False)]
    assert [it.request(n).answered for n in (0, 1, 2)] == [{}, {}, dict.fromkeys("abcd", 1)]
    assert make(tmp_path, resume=True, **options).records == read_history(tmp_path) == [record]


def test_an_unfinished_run_is_not_overwritten_and_no_other_is_resumed(tmp_path):
    with pytest.raises(StateError, match="no checkpoint to resume from"):
        make(tmp_path / "new", resume=True)
    with pytest.raises(SettingsError, match=r"^resume: needs run_dir"):
        make(resume=True)
    with pytest.raises(StateError, match="File name too long"):
        make(tmp_path / ("x" * 300))
    run_rounds(make(tmp_path), 5)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(StateError, match=r"unfinished run \(round 5 of 6\): set resume = true"):
        make(tmp_path)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_finished_run_is_replaced_whatever_its_modes(tmp_path):
    run_rounds(make(tmp_path, rounds=2), 2)
    second = make(tmp_path, rounds=3, shape=(1, 5, 2))
    assert (second.resumed, second.finished_rounds, second.asked_rounds) == (False, 0, 0)
    run_rounds(second, 1)
    assert len((tmp_path / HISTORY).read_text().splitlines()) == 1


ANOTHER_RUN = {
    "gamma, relative-l21": {"gamma": 4.0, "relative_l21": 0.2},
    "solver, eta, gamma, clip, privacy": {"privacy": "paper", "solver": "psgd", "clip": 1.0},
    "solver": {"solver": "psgd"}, "shrink": {"shrink": 2.0}, "seed": {"seed": 1},
    "elastic-step": {"elastic_step": 0.1}, "vocabulary": {"vocabulary": "0a,1c"},
    "job": {"job": "other"}, "rounds": {"rounds": 9}, "shape": {"shape": (5, 5)},
    "privacy, .*secure-sums, .*": {"privacy": "patient", "secure_sums": True, "sites": 5},
}  # fmt: skip


@pytest.mark.parametrize(("keys", "changes"), ANOTHER_RUN.items(), ids=ANOTHER_RUN)
def test_another_runs_checkpoint_is_refused_by_what_differs(tmp_path, keys, changes):
    run_rounds(make(tmp_path, job="mine"), 2)
    with pytest.raises(StateError, match=rf"which differs in {keys}; the checkpoint has "):
        make(tmp_path, resume=True, **{"job": "mine", **changes})


def test_a_truncated_checkpoint_is_damaged_wherever_it_ends(tmp_path):
    path = run_rounds(make(tmp_path), 3).run_dir / CHECKPOINT
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(StateError, match="damaged checkpoint"):
            make(tmp_path, resume=True)


def test_a_checkpoint_of_before_missed_rounds_were_kept_is_read(tmp_path):
    done, path = run_rounds(make(tmp_path), 3), tmp_path / CHECKPOINT
    arrays = {n: a for n, a in np.load(path).items() if n not in ("missed", "checksum")}
    np.savez(path, checksum=np.array(history._checksum(arrays)), **arrays)
    assert make(tmp_path, resume=True).records == done.records


@pytest.mark.parametrize(
    ("name", "value"),
    [("identity", '{"job": "../x", "rounds": 6}'), ("history", ""), ("factor_2", 0.5)],
)
def test_what_somebody_wrote_into_a_checkpoint_is_damage(tmp_path, name, value):
    path = run_rounds(make(tmp_path), 3).run_dir / CHECKPOINT
    np.savez(path, **{**np.load(path), name: np.array(value)})
    damaged = path.read_bytes()
    for resume in (True, False):
        with pytest.raises(StateError, match="damaged checkpoint; restore it from a copy"):
            make(tmp_path, resume=resume)
    assert path.read_bytes() == damaged


def test_an_unfinished_write_leaves_the_round_before(tmp_path, monkeypatch):
    coordinator = run_rounds(make(tmp_path), 2)
    factors, records = coordinator.factors, list(coordinator.records)
    with monkeypatch.context() as broken:
        broken.setattr(np, "savez", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
        with pytest.raises(StateError, match=f"{tmp_path}.*: no space"):
            close(coordinator, 3)
    found = make(tmp_path, resume=True)
    assert_bits(found.factors, factors)
    assert found.records == records
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, HISTORY}
