"""A site and its server for the tests in this folder."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dpfact_flower.client_app import DPFactClient, RoundRefusedError
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.ledger import LedgerRow, keyed_hash
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
from dpfact_flower.site.disclosure import ReplyDelay
from dpfact_flower.site.store import SiteStore
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from tests.ledgers import rows_in

PRIVACY = PrivacySettings(
    epsilon=4.0, delta=1e-5, start_share=0.7, refine_rounds=1, bound=0.1, codes="6x8"
)
PLANNED = replace(PRIVACY, refine_rounds=2, codes="")
CODES = replace(PLANNED, codes="6x8")
SOLVER = SolverSettings(rank=4)
SIZES = (9, 12)
LEAVES = re.compile(r"dpfact:([a-z-]+) \(details are in the site's own log\)")


# --- a site, and the rounds that a server requests


def make_settings(tmp_path, **settings) -> SiteSettings:
    """Return the settings of a site whose budget allows exactly one run of epsilon 4."""
    given = {"allow_privacy": "patient", "max_epsilon": 4.0, "state_dir": str(tmp_path / "state")}
    return SiteSettings(**{**given, **settings})


def make_client(data, tmp_path, *, simulation=False, **settings) -> DPFactClient:
    return DPFactClient(data, make_settings(tmp_path, **settings), simulation=simulation)


def make_server(data, privacy=PLANNED, solver=SOLVER, **run) -> Coordinator:
    return Coordinator(
        data.tensor.feature_shape, solver=solver, privacy=privacy,
        run=RunSettings(**{"job": "job", "sites": 1, "seed": 3, **run}),
        vocabulary=data.vocabularies,
    )  # fmt: skip


def make_request(sizes=SIZES, solver=SOLVER, **changes) -> RoundRequest:
    """A request without noise, of a run of nine rounds."""
    request = RoundRequest(
        job="job", round=1, rounds=9, seed=0, solver=solver, vocabulary="", rule="elastic",
        privacy=PrivacySettings(privacy="none"),
        anchors=initial_factors(sizes, solver.rank, 0),
    )  # fmt: skip
    return replace(request, **changes)


def ask(client, request) -> tuple[list[np.ndarray], dict]:
    arrays, examples, config = client.fit(*request.to_wire())
    assert examples == 1
    return arrays, config


def read(server: Coordinator, number: int, answer) -> SiteReply:
    """Return a reply as the server reads it."""
    return SiteReply.from_wire(*answer, server.rule.reply_shapes(number))


def close(server: Coordinator, number: int, answers) -> None:
    """Close a round on the server."""
    replies = [read(server, number, answer) for answer in answers]
    server.close_round(number, replies, [], bytes_down=0, bytes_up=0, seconds=0.0)


def go_to(client, server: Coordinator, last: int) -> list[tuple[RoundRequest, list[np.ndarray]]]:
    """Play the rounds up to `last` with one site. Return the requests and the sent arrays."""
    seen = []
    for number in range(server.finished_rounds + 1, last + 1):
        request = server.request(number)
        answer = ask(client, request)
        seen.append((request, answer[0]))
        close(server, number, [answer])
    return seen


def rows_of(tmp_path, site="site-1") -> tuple[LedgerRow, ...]:
    return rows_in(tmp_path / "state" / site)


def events_of(tmp_path) -> list[ReleaseEvent]:
    return [event for row in rows_of(tmp_path) for event in row.events]


def store_of(data, tmp_path, job="job") -> SiteStore:
    folder = tmp_path / "state" / "site-1"
    return SiteStore(folder, job, keyed_hash(folder, job, data.fingerprint))


def refusal(client, request, caplog) -> tuple[str, str]:
    """Return the code sent for a refusal, and the site's own log."""
    wire = request.to_wire() if isinstance(request, RoundRequest) else request
    caplog.clear()
    with caplog.at_level(logging.INFO), pytest.raises(RoundRefusedError) as error:
        client.fit(*wire)
    leaves = LEAVES.fullmatch(str(error.value))
    assert leaves, str(error.value)
    assert error.value.args == (str(error.value),)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    return leaves[1], caplog.text


def bits(arrays) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def raising(error: BaseException) -> Callable:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


# --- two sites that differ in one patient


class Asked(NamedTuple):
    """A site's reply, and its charges."""

    reply: str
    rows: int


class Watched:
    """A site's data that records whether its patients were read."""

    def __init__(self, data: SiteData) -> None:
        self.name, self.vocabularies, self._data = data.name, data.vocabularies, data
        self.read_by_now = False

    def read(self) -> SiteData:
        self.read_by_now = True
        return self._data


class World:
    """A site with one data set and its own folder, and a run in which it takes part."""

    def __init__(self, data: SiteData, folder: Path) -> None:
        self.folder = folder
        self.source = Watched(data)
        settings = SiteSettings(
            state_dir=str(folder), allow_privacy="patient", max_epsilon=100.0, site="north",
            data_site="site-1",
        )  # fmt: skip
        self.client = DPFactClient(self.source, settings)
        self.requests = requests()

    def ask(self, number: int, time_left: float = math.inf) -> Asked:
        return self.answer(self.requests[number], time_left)

    def answer(self, request: RoundRequest, time_left: float = math.inf) -> Asked:
        self.source.read_by_now = False
        self.client._first_delay = ReplyDelay(0, time_left=time_left)
        try:
            arrays, examples, config = self.client.fit(*request.to_wire())
            reply = f"{[a.dtype.str for a in arrays]} {examples} {config}"
        except RoundRefusedError as error:
            reply = str(error).split(" ")[0]
        return Asked(reply, self.rows())

    def preflight(self, request: RoundRequest) -> str:
        self.source.read_by_now = False
        arrays, config = request.to_wire()
        try:
            _, _, said = self.client.preflight(arrays, {**config, "round-timeout": 600.0})
        except RoundRefusedError as error:
            return str(error).split(" ")[0]
        assert said.keys() == {"site", "version"}
        return "ready"

    def go_to(self, number: int) -> None:
        for earlier in range(1, number):
            assert self.ask(earlier).reply.startswith("[")

    def rows(self) -> int:
        return len(rows_in(self.folder / "north"))

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))


def requests() -> dict[int, RoundRequest]:
    """Return a server's requests in a run: codes, start, two refinements, and the end."""
    server = Coordinator(
        SIZES, solver=SolverSettings(rank=4), privacy=PRIVACY, run=RunSettings(job="job", sites=1)
    )
    first = server.request(1)
    kept = tuple(np.arange(size, dtype=np.int32) for size in (6, 8))
    factors = initial_factors((6, 8), 4, 1)
    return {1: first, 2: replace(first, round=2, selection=kept)} | {
        number: replace(first, round=number, selection=kept, anchors=factors)
        for number in range(3, server.rounds + 1)
    }


def neighbours(site: SiteData, tmp_path: Path) -> list[World]:
    """Return a site, and the same site with an additional patient who has all pairs of codes."""
    here = site.tensor
    codes = np.argwhere(np.ones(SIZES))
    one = np.column_stack([np.full(len(codes), here.n_patients), codes])
    more = SparseTensor.from_coo(
        np.vstack([here.indices, one]), np.concatenate([here.values, np.full(len(one), 900.0)]),
        (here.n_patients + 1, *SIZES),
    )  # fmt: skip
    return [World(site, tmp_path / "without"), World(replace(site, tensor=more), tmp_path / "with")]
