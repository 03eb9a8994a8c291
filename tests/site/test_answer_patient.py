"""A site's answers in patient mode: whole runs, repeats, and refusals."""

import hashlib
import logging
import math
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dpfact_flower.client_app import RoundRefusedError
from dpfact_flower.errors import StateError
from dpfact_flower.privacy import PATIENT_CLAIM, account
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site import admission, answer, lockout, resources
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest
from tests.site.federation import (
    CODES,
    PLANNED,
    SOLVER,
    Watched,
    ask,
    bits,
    close,
    go_to,
    make_client,
    make_request,
    make_server,
    read,
    refusal,
    rows_of,
)  # fmt: skip

# --- a whole run


@pytest.mark.parametrize("privacy", [PLANNED, CODES], ids=["whole vocabularies", "codes counted"])
def test_a_whole_run_sends_one_vector_a_round_and_spends_what_was_planned(
    data, tmp_path, caplog, privacy
):
    caplog.set_level("INFO")
    client, server = make_client(data, tmp_path), make_server(data, privacy)
    seen = go_to(client, server, server.rounds)
    assert len(seen) == server.rounds == (1 if privacy.codes else 0) + 1 + 2 * 2 + 1
    rows = rows_of(tmp_path)
    for number, (request, sent) in enumerate(seen, start=1):
        arrays = read(server, number, (sent, {"site": "site-1"})).arrays
        assert [array.shape for array in arrays] == server.rule.reply_shapes(number)
        assert len(arrays) == (0 if number == server.rounds else 1)
        assert all(array.dtype == np.float32 for array in arrays)
        assert request.round == number
        payload = b"".join(bits(arrays))
        if number < server.rounds:  # uncharged rounds are not in the ledger
            assert hashlib.sha256(payload).hexdigest() == rows[number - 1].payload_sha256
        if len(payload) > 4 * 200:  # with few values, blocks are not full
            assert sum(map(len, bits(sent))) < 0.6 * len(payload)
    assert [row.round for row in rows] == list(range(1, server.rounds))
    events = [event for row in rows for event in row.events]
    assert len(events) == server.rounds - 1
    assert {(e.unit, e.neighbours) for e in events} == {("patient", "add-remove")}
    spent = account(events, 1e-5)
    assert 3.9 < spent.headline.epsilon <= 4.0
    assert spent.claim == PATIENT_CLAIM
    line = r"job job, round \d+: proven: .*; epsilon_spent (.*), epsilon_alone_spent (.*); ledger: "
    so_far = [account(events[:n], 1e-5).headline.epsilon for n in range(1, server.rounds)]
    assert re.findall(line, caplog.text) == [(f"{spent:.6f}",) * 2 for spent in so_far]
    left = {path.name for path in (tmp_path / "state" / "site-1" / "job").iterdir()}
    assert left == {"NOT-TO-BE-SHARED.txt", "ending.npz"}  # no factors


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [PLANNED, CODES], ids=["whole vocabularies", "codes counted"])
def test_a_repeated_request_gets_its_bytes_at_no_cost_even_after_a_restart(data, tmp_path, privacy):
    client, server = make_client(data, tmp_path), make_server(data, privacy)
    seen = go_to(client, server, server.rounds)
    before = rows_of(tmp_path)
    states = {p: p.read_bytes() for p in (tmp_path / "state").rglob("*.npz")}
    assert len(states) == 1  # the last round's request
    random.Random(0).shuffle(seen)
    for request, arrays in seen:  # old rounds too, in any order, by the same process and another
        for site in (client, make_client(data, tmp_path)):
            again, config = ask(site, request)
            assert bits(again) == bits(arrays)
            assert config == {"site": "site-1"}
    assert rows_of(tmp_path) == before
    assert {p: p.read_bytes() for p in (tmp_path / "state").rglob("*.npz")} == states


def test_requests_at_the_same_time_make_one_release(data, tmp_path):
    request = make_server(data).request(1)
    with ThreadPoolExecutor(4) as pool:
        clients = [make_client(data, tmp_path) for _ in range(4)]
        answers = list(pool.map(lambda client: ask(client, request)[0], clients))
    assert len({tuple(bits(answer)) for answer in answers}) == 1
    assert len(rows_of(tmp_path)) == 1


def test_a_site_that_missed_rounds_answers_the_next(data, tmp_path):
    """Another site kept the run going, and this site is charged only for the remaining rounds."""
    server = make_server(data)
    go_to(make_client(replace(data, name="other"), tmp_path / "other"), server, 2)
    answer = ask(make_client(data, tmp_path), server.request(3))
    assert [a.shape for a in read(server, 3, answer).arrays] == server.rule.reply_shapes(3)
    assert [row.round for row in rows_of(tmp_path)] == [3]


# --- the budget


def test_the_cap_counts_the_whole_run_before_anything_is_spent(data, tmp_path, caplog):
    """One release would fit the cap, but the whole run would not, so nothing is released."""
    source, server = Watched(data), make_server(data)
    first = account(server.rule.planned_events(1), 1e-5).headline.epsilon
    cap = 3.99
    assert first < cap
    code, log = refusal(make_client(source, tmp_path, max_epsilon=cap), server.request(1), caplog)
    assert not source.read_by_now
    assert code == "privacy-refused"
    assert "max-epsilon is 3.99; with the planned releases" in log
    assert rows_of(tmp_path) == ()
    run = [e for n in range(1, server.rounds + 1) for e in server.rule.planned_events(n)]
    exact = make_client(data, tmp_path, max_epsilon=account(run, 1e-5).headline.epsilon)
    exact.site.preflight(server.request(1))


@pytest.mark.slow
def test_a_second_run_is_another_cost(data, tmp_path, caplog):
    """A new job name gives no new budget."""
    client, server = make_client(data, tmp_path), make_server(data)
    go_to(client, server, server.rounds)
    before = rows_of(tmp_path)
    other = make_server(data, job="other")
    assert refusal(client, other.request(1), caplog)[0] == "privacy-refused"
    assert rows_of(tmp_path) == before
    go_to(make_client(data, tmp_path, max_epsilon=7.0), other, other.rounds)
    with Ledger(tmp_path / "state" / "site-1", create=False) as ledger:
        assert len(ledger.events()) == 2 * len(ledger.events("job"))
        total = account(ledger.events(), 1e-5).headline.epsilon
    assert 5 < total <= 7.0  # two runs of 4 are less than 8 together


def test_no_more_rounds_are_timed_than_the_hospital_wants_in_whatever_job(data, tmp_path, caplog):
    source = Watched(data)
    server = make_server(data)
    code, log = refusal(make_client(source, tmp_path, max_rounds=4), server.request(1), caplog)
    assert code == "privacy-refused"  # none of the plan's five rounds with noise is charged
    assert "max-rounds is 4; this site has answered 0 rounds" in log
    assert not source.read_by_now
    seen = go_to(make_client(source, tmp_path, max_rounds=5, max_epsilon=100.0), server, 3)
    assert len(rows_of(tmp_path)) == 3
    source.read_by_now = False
    other = make_server(data, job="another").request(1)
    asked = (server.request(4), "the server asks for 1 more;"), (other, "this run needs 5 more;")
    for most, (request, so) in product((2, 3), asked):
        client = make_client(source, tmp_path, max_rounds=most, max_epsilon=100.0)
        code, log = refusal(client, request, caplog)
        assert code == "privacy-refused"
        assert f"max-rounds is {most}; this site has answered 3 rounds in all jobs, and {so}" in log
    assert np.array_equal(ask(client, seen[-1][0])[0][0], seen[-1][1][0])  # a repeat does not count
    assert not source.read_by_now
    go_to(make_client(data, tmp_path, max_rounds=4, max_epsilon=100.0), server, 4)
    assert len(rows_of(tmp_path)) == 4


@pytest.mark.parametrize("used", [0, 5 * 2**28])
@pytest.mark.parametrize("threads", [1, 2, 48])
def test_a_start_that_leaves_the_patients_no_memory_is_refused_before_one_is_read(
    data, tmp_path, caplog, monkeypatch, used, threads
):
    """A server could fill the memory with its messages, to see whether the patients still fit."""
    source, server = Watched(data), make_server(data)
    values = math.comb(sum(data.tensor.feature_shape), 2)
    need = used + values * (48 + 8 * (threads - 1))  # each thread has its own copy of the sum
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    monkeypatch.setattr(resources, "memory_used", lambda: used)
    monkeypatch.setattr(resources, "memory_limit", lambda: 4 * need // 3 - 1)
    code, log = refusal(make_client(source, tmp_path), server.request(1), caplog)
    assert code == "message"
    assert f"a release of {values:,} values needs {need / 2**30:.1f} GiB" in log
    assert f"may use {(4 * need // 3 - 1) / 2**30:.1f}, of which" in log
    assert not source.read_by_now
    assert rows_of(tmp_path) == ()
    monkeypatch.setattr(resources, "memory_limit", lambda: math.ceil(4 * need / 3))
    make_client(source, tmp_path).site.preflight(server.request(1))
    monkeypatch.setattr(resources, "memory_used", lambda: need)
    resources.check_memory([])  # a release of nothing needs nothing


def test_the_server_cannot_widen_the_budget_by_naming_a_large_delta(data, tmp_path, caplog):
    server = make_server(data, replace(PLANNED, delta=0.4))
    code, log = refusal(make_client(data, tmp_path), server.request(1), caplog)
    assert code == "privacy-refused"
    assert "at delta 1e-05" in log


@pytest.mark.parametrize("mode", ["paper", "none"])
def test_releases_that_do_not_add_up_are_refused(data, tmp_path, caplog, mode):
    """A release without epsilon, or with another unit, cannot be added to a patient's total."""
    solver = SolverSettings(rank=4, solver="psgd", clip=1.0, eta=1e-3)
    privacy = PrivacySettings(privacy=mode, epsilon=0.5)
    earlier = make_request(solver=solver, job="earlier", privacy=privacy)
    allowed = {"allow_privacy": "none,paper,patient", "max_epsilon": 100.0, "simulation": True}
    client = make_client(data, tmp_path, **allowed)
    ask(client, earlier)
    code, log = refusal(client, make_server(data).request(1), caplog)
    assert code == "privacy-refused"
    assert ("another unit" if mode == "paper" else "without noise") in log
    assert len(rows_of(tmp_path)) == 1


# --- refused requests


def changed(request: RoundRequest, **settings) -> RoundRequest:
    return replace(request, privacy=replace(request.privacy, **settings))


def of_solver(request: RoundRequest, **settings) -> RoundRequest:
    return replace(request, solver=replace(request.solver, **settings))


def of_factors(sizes, rank=4):
    return initial_factors(sizes, rank, 1)


def picked(*sizes):
    return tuple(np.arange(size, dtype=np.int32) for size in sizes)


REFUSED_AT_ONCE = {
    # description, round, change of the request, and the code sent
    "a larger epsilon": (1, lambda r: changed(r, epsilon=4.2), "privacy-refused"),
    "more rounds than the plan": (1, lambda r: replace(r, rounds=r.rounds + 1), "message"),
    "a round beyond the last": (1, lambda r: replace(r, round=r.rounds + 1), "message"),
    "too many refinements": (1, lambda r: changed(r, refine_rounds=3), "message"),
    "noise beyond float32": (1, lambda r: changed(r, start_share=1e-80), "message"),
    "no share planned": (1, lambda r: changed(r, start_share=0.0), "message"),
    "seeded noise": (1, lambda r: changed(r, noise_seed=7), "privacy-refused"),
    "another vocabulary": (1, lambda r: replace(r, vocabulary="0" * 64), "message"),
    "a rank beyond the limit": (1, lambda r: of_solver(r, rank=5), "message"),
    "tau beyond the limit": (1, lambda r: of_solver(r, tau=SOLVER.tau + 1), "message"),
    "factors where none belong": (1, lambda r: replace(r, anchors=of_factors((9, 12))), "message"),
    "a selection uncalled for": (1, lambda r: replace(r, selection=picked(6, 8)), "message"),
    "codes that were not counted": (1, lambda r: changed(r, codes="6x8"), "message"),
    "no factors": (2, lambda r: replace(r, anchors=()), "message"),
    "no factors at the end": (6, lambda r: replace(r, anchors=()), "message"),
    "a factor missing": (2, lambda r: replace(r, anchors=r.anchors[:1]), "message"),
    "a code too many": (2, lambda r: replace(r, anchors=of_factors((9, 13))), "message"),
    "a selection in the middle": (2, lambda r: replace(r, selection=picked(9, 12)), "message"),
    "the settings of another run": (2, lambda r: changed(r, epsilon=3.9), "message"),
    "another seed": (2, lambda r: replace(r, seed=4), "message"),
    "usages of slots": (2, lambda r: replace(r, usages=np.ones((1, 2, 4))), "message"),
    "another l2,1 weight": (2, lambda r: of_solver(r, relative_l21=0.5), "message"),
}  # fmt: skip
WITH_CODES = {
    "a selection before counts": (1, lambda r: replace(r, selection=picked(6, 8)), "message"),
    "factors before counts": (1, lambda r: replace(r, anchors=of_factors((9, 12))), "message"),
    "no selection at the start": (2, lambda r: replace(r, selection=()), "message"),
    "no selection later": (3, lambda r: replace(r, selection=()), "message"),
    "no selection at the end": (7, lambda r: replace(r, selection=()), "message"),
    "factors at the start": (2, lambda r: replace(r, anchors=of_factors((6, 8))), "message"),
    "a mode's selection missing": (2, lambda r: replace(r, selection=picked(6)), "message"),
    "a mode's selection missing later": (3, lambda r: replace(r, selection=picked(6)), "message"),
    "a selection too many": (2, lambda r: replace(r, selection=picked(6, 8, 2)), "message"),
    "no such codes": (2, lambda r: replace(r, selection=(*picked(6), picked(8)[0] + 5)), "message"),
    "more codes than planned": (2, lambda r: replace(r, selection=picked(7, 8)), "message"),
    "fewer codes than planned": (2, lambda r: replace(r, selection=picked(6, 7)), "message"),
    "a selection of other codes": (3, lambda r: replace(r, anchors=of_factors((9, 12))), "message"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("privacy", "number", "change", "code"),
    [(PLANNED, *each) for each in REFUSED_AT_ONCE.values()]
    + [(CODES, *each) for each in WITH_CODES.values()],
    ids=[*REFUSED_AT_ONCE, *WITH_CODES],
)
def test_what_is_refused_costs_nothing_and_harms_nothing(
    data, tmp_path, caplog, privacy, number, change, code
):
    source, server = Watched(data), make_server(data, privacy)
    client = make_client(source, tmp_path, max_rank=SOLVER.rank, max_tau=SOLVER.tau)
    go_to(client, server, number - 1)
    before = rows_of(tmp_path)
    request = server.request(number)
    source.read_by_now = False
    assert refusal(client, change(request), caplog)[0] == code
    assert not source.read_by_now
    assert rows_of(tmp_path) == before
    ask(client, request)


@pytest.mark.slow
@pytest.mark.parametrize("name", [LEDGER, f"{LEDGER}-journal", LEDGER.upper(), lockout._NOTE])
def test_no_job_takes_the_place_of_the_ledgers_files(data, tmp_path, caplog, name):
    """A folder with the journal's name would prevent all later charges."""
    client = make_client(data, tmp_path)
    code, log = refusal(client, make_server(data, job=name).request(1), caplog)
    assert code == "message"
    assert "is reserved for the ledger's files" in log
    server = make_server(data)
    go_to(client, server, server.rounds)
    assert len(rows_of(tmp_path)) == server.rounds - 1


def test_a_new_name_opens_no_new_budget(data, tmp_path, caplog):
    """The ledger is found by the site's name in the node config or else in the data file."""
    client, server = make_client(data, tmp_path), make_server(data)
    with caplog.at_level(logging.WARNING):
        go_to(client, server, server.rounds)
    assert caplog.text.count(": new ledger in ") == 1  # also if a disk is not mounted
    request = make_server(data, job="again").request(1)
    for other in (data, without_cells(data)):  # only people can know whether the patients differ
        watched = Watched(replace(other, name="of-2027"))
        for own in ({}, {"site": "north", "data_site": "of-2027"}):
            renamed = make_client(watched, tmp_path, **own)
            code, log = refusal(renamed, request, caplog)
            assert code == "state"
            assert "holds the ledger of site-1, which is not" in log
            with pytest.raises(StateError, match="holds the ledger of site-1"):
                renamed.site.preflight(request)
        assert not watched.read_by_now
    assert not (tmp_path / "state" / "north" / LEDGER).exists()
    own = {"site": "north", "data_site": "site-1"}
    ask(make_client(without_cells(data), tmp_path / "elsewhere", **own), request)
    (tmp_path / "state/site-1" / LEDGER).rename(tmp_path / "state" / LEDGER)  # a restore gone wrong
    _, log = refusal(make_client(data, tmp_path, **own), request, caplog)
    assert "set state-dir to the folder above it; otherwise, move" in log


@pytest.mark.parametrize(("where", "name"), [(admission, "check_attempts"), (answer, "compute")])
def test_without_a_lock_two_jobs_do_not_share_one_budget(
    data, tmp_path, caplog, monkeypatch, where, name
):
    """There is budget for one run. A second is answered while the first is in progress."""
    first, second = make_client(data, tmp_path), make_client(data, tmp_path)
    requests = [make_server(data, job=job).request(1) for job in ("a", "b")]
    (tmp_path / "state" / "site-1").mkdir(parents=True)  # which the lock would create
    monkeypatch.setattr("dpfact_flower.site.admission.locked", lambda _: nullcontext())
    step = getattr(where, name)

    def meanwhile(*arguments):
        outcome = step(*arguments)
        monkeypatch.setattr(where, name, step)
        ask(second, requests[1])
        return outcome

    monkeypatch.setattr(where, name, meanwhile)
    left, log = refusal(first, requests[0], caplog)
    assert left == "failed"
    assert "another process charged" in log
    assert [row.job for row in rows_of(tmp_path)] == ["b"]
    assert refusal(first, requests[0], caplog)[0] == "privacy-refused"


# --- sites with little or no data


def without_cells(data):
    return replace(data, tensor=SparseTensor.from_coo(np.empty((0, 3)), [], data.tensor.shape))


def without_kept_codes(data):
    """Return the site with patients who have only the last codes of the vocabularies."""
    cells = [[patient, 8, 11] for patient in range(data.tensor.n_patients)]
    return replace(data, tensor=SparseTensor.from_coo(cells, [1] * len(cells), data.tensor.shape))


@pytest.mark.slow
@pytest.mark.parametrize("poor", [without_cells, without_kept_codes],
                         ids=lambda make: make.__name__)  # fmt: skip
def test_a_site_with_nothing_to_say_answers_like_any_other(data, tmp_path, caplog, poor):
    server = make_server(data, CODES, sites=2, min_sites=2)
    rich = make_client(data, tmp_path / "rich")
    other = make_client(replace(poor(data), name="site-2"), tmp_path / "poor")
    for number in range(1, server.rounds + 1):
        request = server.request(number)
        if number == 2:  # the choice by counts depends on noise
            server.rule.selection = picked(6, 8)
            request = server.request(number)
        answers = [ask(client, request) for client in (rich, other)]
        replies = [read(server, number, answer).arrays for answer in answers]
        shapes = [[(a.shape, a.dtype) for a in arrays] for arrays in replies]
        assert shapes[0] == shapes[1]
        assert [config.keys() for _, config in answers] == [{"site"}] * 2
        for array in replies[1]:
            assert np.isfinite(array).all()
            assert (array != 0).mean() > 0.9  # only noise, but noise
        close(server, number, answers)
    spent = [
        [(e.name, e.sensitivity, e.sigma, e.count) for row in rows for e in row.events]
        for rows in (rows_of(tmp_path / "rich"), rows_of(tmp_path / "poor", "site-2"))
    ]
    assert spent[0] == spent[1]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# --- sent and logged data

PLANTED = 987654


def planted(data):
    """Return the same site with a unique count, and a unique number of patients."""
    cells = np.concatenate([data.tensor.indices, [[876543, 3, 3]]])
    values = np.concatenate([data.tensor.values, [PLANTED]])
    values[5] = PLANTED
    # Patients without a cell cost nothing, and only their number must not be visible.
    return replace(data, tensor=SparseTensor.from_coo(cells, values, (876544, 9, 12)))


def texts_of(error: BaseException | None) -> str:
    found = ""
    while error is not None:
        found += f"{error!r} {error.args!r}"
        error = error.__context__
    return found


@pytest.mark.slow
def test_no_text_holds_a_value_of_a_patient(data, tmp_path, caplog):
    own = planted(data)
    client, server = make_client(own, tmp_path), make_server(own, CODES)
    secrets = re.compile(rf"{PLANTED}|\b87654[34]\b")
    texts = []
    with caplog.at_level(logging.DEBUG):
        for number in range(1, server.rounds + 1):
            request = server.request(number)
            bad = [replace(request, rounds=99), replace(request, selection=picked(9, 99)),
                   changed(request, epsilon=99.0), replace(request, anchors=of_factors((3, 3))),
                   replace(request, seed=9)]  # fmt: skip
            for asked in bad[: 4 if number == 1 else 5]:
                with pytest.raises(RoundRefusedError) as error:
                    client.fit(*asked.to_wire())
                texts.append(texts_of(error.value))
            close(server, number, [ask(client, request)])
    texts += [record.getMessage() for record in caplog.records]
    texts += [repr(client), repr(answer.JobState(PLANTED))]
    assert len(texts) > 40
    for text in texts:
        assert not secrets.search(text)
    # Files for human readers contain none either.
    for row in rows_of(tmp_path):
        assert not secrets.search(repr(row))
