"""Files that an older version wrote are read, verified and gone on with: see before/make.py."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpfact_flower.client import DPFactClient
from dpfact_flower.data.site_data import load_site
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import StateError
from dpfact_flower.privacy.ledger import Head, Ledger
from dpfact_flower.privacy.patient import plan
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import RunSettings, SiteSettings, SolverSettings
from dpfact_flower.site.refit import refit
from dpfact_flower.site.store import SiteStore
from dpfact_flower.wire.protocol import SiteReply
from tests.site.before.make import HALF, PRIVACY

PLANNED = {**PRIVACY, "patient": replace(PRIVACY["patient"], start_share=0.7)}
"""As that version planned it: today's plan, which has another share, is refused, naming both."""
BEFORE = Path(__file__).with_name("before")


@pytest.fixture
def data():
    return load_site(BEFORE / "site-1.npz")


@pytest.fixture(params=PRIVACY)
def place(request, tmp_path) -> Path:
    """What a site and a server of the older version left, for their owner alone as it was then."""
    folder = shutil.copytree(BEFORE / request.param, tmp_path / request.param)
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
    return folder


def test_a_run_that_an_older_version_began_is_gone_on_with(place, data):
    mode, state = place.name, place / "state"
    server = Coordinator(
        data.tensor.feature_shape, solver=SolverSettings(rank=4, off=0.0), privacy=PLANNED[mode],
        run=RunSettings(rounds=4, sites=1, seed=3), vocabulary=joint_digest(data.vocabularies),
        run_dir=place / "run", resume=True,
    )  # fmt: skip
    assert (server.run.job, server.finished_rounds) == ("before", HALF)
    epsilon = 0.0 if mode == "none" else 4.1
    settings = SiteSettings(state_dir=str(state), allow_privacy=mode, max_epsilon=epsilon)
    noted = Head.parse((place / "head").read_text())
    for number in range(HALF + 1, server.rounds + 1):
        arrays, _, config = DPFactClient(data, settings).fit(*server.request(number).to_wire())
        reply = SiteReply.from_wire(arrays, config, server.reply_shapes(number))
        server.close_round(number, [reply], [], bytes_down=1, bytes_up=1, seconds=1.0)
    with Ledger(state / "site-1", create=False) as ledger:
        assert ledger.verify(noted) == []
        rounds = [row.round for row in ledger.rows()]
        charged = sum(event.rho for event in ledger.events())
    plan = [event for n in range(1, server.rounds + 1) for event in server.planned_events(n)]
    assert charged == pytest.approx(sum(event.rho for event in plan), rel=1e-12)
    if mode == "patient":  # whose last round is free, and leaves what a refit needs
        assert rounds == list(range(1, server.rounds))
        assert refit(data, settings, "before").round == server.rounds
    else:
        assert rounds == list(range(1, server.rounds + 1))
        store = SiteStore(state, "site-1", "before", data.fingerprint)
        assert store.load(server.rounds).round == server.rounds
        # Round 1 is the start: no model to measure.
        assert [each.round for each in store.history()] == rounds[1:]


def test_a_run_that_today_plans_otherwise_says_what_to_set(tmp_path, data, monkeypatch):
    monkeypatch.setattr(plan, "_START_SHARE", 0.4)
    shutil.copytree(BEFORE / "patient" / "run", tmp_path / "run")
    with pytest.raises(StateError, match=r"differ in start-share; there: start-share = 0\.7$"):
        Coordinator(
            data.tensor.feature_shape, solver=SolverSettings(rank=4, off=0.0),
            privacy=PRIVACY["patient"], run=RunSettings(rounds=4, sites=1, seed=3),
            vocabulary=joint_digest(data.vocabularies), run_dir=tmp_path / "run", resume=True,
        )  # fmt: skip


def test_a_default_that_has_changed_stays_as_a_run_began_and_another_value_is_refused(place, data):
    given = {
        "privacy": PLANNED[place.name], "run": RunSettings(rounds=4, sites=1, seed=3),
        "vocabulary": joint_digest(data.vocabularies), "run_dir": place / "run", "resume": True,
    }  # fmt: skip
    shape, solver = data.tensor.feature_shape, SolverSettings(rank=4, off=0.0)
    server = Coordinator(shape, solver=solver, **given)
    assert (server.solver.eta, server.solver.zero_ratio) == (0.01, 5.0)
    with pytest.raises(StateError, match=r"they differ in eta; there: eta = 0\.01$"):
        Coordinator(shape, solver=replace(solver, eta=0.2), **given)


def test_a_ledger_of_an_older_version_still_has_what_was_sent(place):
    noted = Head.parse((place / "head").read_text())
    with Ledger(place / "state" / "site-1", create=False) as ledger:
        assert ledger.verify(noted) == []
        assert ledger.head() == noted
        for row in ledger.rows():
            if row.events:
                assert ledger.release_of("before", row.round).arrays[0].size > 0
