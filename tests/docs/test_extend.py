"""docs/how-to/extend.md: every Python block runs unchanged, in order, in one folder."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower import DPFact, InProcessGrid
from dpfact_flower.client_app import app as client
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.synthetic import PRESETS, synthetic
from dpfact_flower.machine.registry import Registry
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.guarantee import accountants
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.rule import ServerRule
from dpfact_flower.server.rules import server_rules
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.rules import site_rules
from dpfact_flower.solver.losses import losses
from dpfact_flower.solver.solvers import solve, solvers
from dpfact_flower.tensor.sparse import as_tensor
from dpfact_flower.wire.protocol import SiteReply
from tests.commands import dpfact
from tests.docs.pages import SMALL

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"
REGISTRIES: tuple[Registry, ...] = accountants, losses, server_rules, site_rules, solvers
STAYS = """hospital,patient,procedures,diagnoses
north,17,P1 P2,D1
north,17,P1,D1
north,18,P2,D2 D1
south,5,P1,D2
"""


def blocks(title: str, language: str = "python") -> list[str]:
    """Return the blocks of a section of the page."""
    (section,) = [
        text for text in PAGE.read_text(encoding="utf-8").split("\n## ") if text.startswith(title)
    ]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def first(tmp_path_factory):
    """The first section's names, with a small demo. Registrations are undone afterwards."""
    before = [dict(registry._more) for registry in REGISTRIES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "demo", SMALL)
        patch.chdir(tmp_path_factory.mktemp("first"))
        yield run("A server rule", {})
    for registry, more in zip(REGISTRIES, before, strict=True):
        registry._more = more


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(title: str, names: dict) -> dict:
    """Return the names after a section that started with the given names."""
    names = dict(names)
    for number, block in enumerate(blocks(title), start=1):
        exec(compile(block, f"{PAGE.name}: {title}, block {number}", "exec"), names)
    return names


def test_a_server_rule_is_taken_by_name(first):
    rounds = list(first["run"].records)
    assert [(len(r.sites), r.updated) for r in rounds] == [(6, True)] * 3
    # The median of six sites' factors differs from a pull toward the mean, so the rule was used.
    mean = first["federate"]({"data": "synthetic:demo", "out": "runs/mean", "privacy": "none",
                              "rounds": 3})  # fmt: skip
    pairs = zip(first["run"].model.factors, mean.model.factors, strict=True)
    assert all(np.abs(a - b).max() > 0 for a, b in pairs)


def test_the_median_is_not_dragged_along_by_one_site(first):
    none = PrivacySettings(privacy="none")
    rule = first["MedianRule"]((2, 2), SolverSettings(rank=1), none, RunSettings())
    one = np.ones((2, 1), np.float32)
    sizes = {"a": 1, "b": 2, "c": 1e6}
    rule.update(1, [SiteReply(name, (one * size, one)) for name, size in sizes.items()])
    np.testing.assert_array_equal(rule.factors[0], 2 * one)


class FrequencyRule(ServerRule):
    """The server's half of the page's rule: one column per mode, with the codes' noisy shares."""

    name = "frequency"
    rounds = 1
    event_of: Callable[..., ReleaseEvent]  # the page's function

    def __init__(self, feature_shape, solver, privacy, run):
        self.privacy, self.sizes = privacy, tuple(feature_shape)
        self.factors = tuple(np.zeros((size, 1), np.float32) for size in self.sizes)

    def anchors(self, round_number):
        return ()  # sites need no factors for this round

    def reply_shapes(self, round_number):
        return [(sum(self.sizes),)]

    def planned_events(self, round_number):
        return (self.event_of(self.privacy, self.sizes),)

    def needs_quorum(self, round_number):
        return True

    def update(self, round_number, replies):
        total = np.maximum(sum(reply.arrays[0].astype(np.float64) for reply in replies), 0)
        modes = np.split(total, np.cumsum(self.sizes)[:-1])
        self.factors = tuple((m / max(m.sum(), 1))[:, None].astype(np.float32) for m in modes)

    def state(self):
        return {f"factor_{mode}": factor for mode, factor in enumerate(self.factors)}

    def restore(self, arrays):
        self.factors = tuple(arrays[f"factor_{mode}"] for mode, _ in enumerate(self.sizes))


def learn_frequencies(cohort: Cohort) -> Coordinator:
    """Run the rule in one process, with a ledger for each site."""
    sites = [
        {"site": site.name, "data-path": f"data/own/{site.name}.npz",
         "state-dir": str(Path("state", site.name).absolute()),
         "allow-privacy": "patient", "max-epsilon": 1.0, "allow-rules": "frequency"}
        for site in cohort.sites
    ]  # fmt: skip
    server_rules.register("frequency", FrequencyRule)
    strategy = DPFact(
        cohort.sites[0].tensor.feature_shape, privacy=PrivacySettings(epsilon=1.0),
        run=RunSettings(sites=len(sites), min_sites=len(sites), rule="frequency"),
    )  # fmt: skip
    strategy.start(InProcessGrid(client, sites))
    return strategy.coordinator


def test_a_rule_with_a_release_of_its_own_is_charged_and_learns(folder, first, cohort, monkeypatch):
    # Each patient occurs fifty times, so that noise cannot hide the largest count.
    many = []
    for site in cohort.sites:
        tensor = as_tensor(np.tile(site.tensor.to_dense(), (50, 1, 1)))
        many.append(SiteData(site.name, tensor, site.vocabularies))
    Cohort("own", tuple(many)).save(folder / "data" / "own")
    names = run("A rule with a release", first)
    monkeypatch.setattr(FrequencyRule, "event_of", staticmethod(names["event_of"]), raising=False)
    coordinator = learn_frequencies(cohort)
    for site in cohort.sites:
        with Ledger(folder / "state" / site.name / site.name, create=False) as ledger:
            (event,) = ledger.events()
            assert ledger.verify() == []
        assert event == names["event_of"](coordinator.privacy, (9, 12))
    (record,) = coordinator.records
    assert record.sites == ("site-1", "site-2", "site-3")
    for factor in coordinator.factors:
        assert factor.sum() == pytest.approx(1, rel=1e-6)
    # Every patient has code 0 of both modes (see `cohort`), so it is the largest despite the noise.
    assert [int(factor.argmax()) for factor in coordinator.factors] == [0, 0]


def test_a_loss_is_taken_by_name(first):
    run("A loss", first)
    summary = json.loads(Path("runs/log-ratio/summary.json").read_text())
    assert summary["solver"] == "psgd, log-ratio"
    assert summary["fit"] is None


def test_a_local_solver_is_taken_by_name_and_descends(first):
    names = run("A local solver", first)
    summary = names["solved"].summary.to_dict()
    assert summary["solver"] == "multiplicative"
    assert 0 < summary["fit"] < 1
    tensor, rng = synthetic("demo").sites[0].tensor, np.random.default_rng(0)
    factors = [rng.random((size, 4), np.float32) for size in tensor.shape]
    settings = SolverSettings(rank=4, solver="multiplicative", relative_l21=0.0)
    before, *_, after = solve(tensor, factors, factors[1:], settings, rng).objective
    assert after <= before * (1 + 1e-6)  # objectives are sums with float32 rounding


def test_a_reader_counts_what_the_table_holds(folder):
    (folder / "stays.csv").write_text(STAYS)
    (script,) = blocks("A reader", "sql")
    (folder / "stays.sql").write_text(script)
    dpfact("data", "stays.sql", ".", "--out", "data/stays")
    north, south = Cohort.load(folder / "data" / "stays").sites
    assert [v.codes for v in north.vocabularies] == [("P1", "P2"), ("D1", "D2")]
    assert north.patients == ("17", "18")
    np.testing.assert_array_equal(north.tensor.to_dense(), [[[2, 0], [1, 0]], [[0, 0], [1, 1]]])
    np.testing.assert_array_equal(south.tensor.to_dense(), [[[0, 1], [0, 0]]])


@pytest.mark.nightly
def test_an_accountant_stands_beside_ours(first):
    summary = run("An accountant", first)["audited"].summary.to_dict()
    # Numerical composition rounds losses up to a grid of 1e-4, so it can only be larger.
    assert summary["epsilons"]["PLD, dp-accounting"] == pytest.approx(summary["epsilon"], rel=2e-3)
