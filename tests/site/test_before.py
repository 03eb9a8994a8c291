"""A run that an older version of the server began is gone on with as it began: before/make.py."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpfact_flower.data.site_data import load_site
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import StateError
from dpfact_flower.privacy.patient import plan
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import RunSettings, SolverSettings
from tests.site.before.make import PRIVACY

PLANNED = {**PRIVACY, "patient": replace(PRIVACY["patient"], start_share=0.7)}
"""As that version planned it: today's plan, which has another share, is refused, naming both."""
BEFORE = Path(__file__).with_name("before")


@pytest.fixture
def data():
    return load_site(BEFORE / "site-1.npz")


@pytest.fixture(params=PRIVACY)
def place(request, tmp_path) -> Path:
    """What a server of the older version left, for its owner alone as it was then."""
    folder = shutil.copytree(BEFORE / request.param, tmp_path / request.param)
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
    return folder


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
