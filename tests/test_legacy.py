"""A legacy ServerApp (`server_fn`, ServerAppComponents) drives the same ClientApp."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.client_manager import SimpleClientManager

from dpfact_flower.client_app import app as client_app
from dpfact_flower.errors import QuorumError
from dpfact_flower.evaluation.run_folder import read_model
from dpfact_flower.legacy import DPFact
from dpfact_flower.runtime.federate import federate
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings

SOLVER = SolverSettings(rank=4)
NONE = PrivacySettings(privacy="none")


MODES = {
    "none": (NONE, 3),
    "patient": (PrivacySettings(epsilon=4.0, noise_seed=7), 4),  # rounds of its plan, not of `run`
}


@pytest.mark.nightly  # test_client_app.py shows the same of a strategy in a grid
@pytest.mark.parametrize("mode", MODES)
def test_a_legacy_server_app_gives_the_numbers_of_the_new_strategy(mode, cohort_folder, tmp_path):
    privacy, rounds = MODES[mode]
    patients = sum((40, 25, 30)) if mode == "patient" else 0  # `federate` fills it in from the data
    privacy = replace(privacy, patients=patients)
    run = RunSettings(rounds=3, seed=5, sites=3)
    strategy = DPFact((9, 12), solver=SOLVER, privacy=privacy, run=run)
    assert strategy.coordinator.rounds == rounds
    nodes = [{"partition-id": n, "num-partitions": 3} for n in range(3)]
    config = {"data": str(cohort_folder), "out": str(tmp_path / "legacy")}

    def server_fn(context):
        config = ServerConfig(num_rounds=strategy.coordinator.rounds)
        return ServerAppComponents(strategy=strategy, config=config)

    server = ServerApp(server_fn=server_fn)
    server(InProcessGrid(client_app, nodes, config), Context(1, 1, {}, RecordDict(), {}))
    out = federate({**privacy.to_config(), "data": str(cohort_folder), "out": str(tmp_path / "new"),
                    "rounds": 3, "seed": 5, "rank": 4})  # fmt: skip
    for got, want in zip(strategy.coordinator.factors, read_model(out)[0], strict=True):
        np.testing.assert_array_equal(got, want)
    assert [record.sites for record in strategy.coordinator.records] == [
        ("site-1", "site-2", "site-3")
    ] * rounds


class Proxy:
    """What the strategy needs of a ClientProxy."""

    def __init__(self, cid: str) -> None:
        self.cid = cid


def result(site="a", value=0.5, shapes=((5, 4), (7, 4))) -> FitRes:
    arrays = [np.full(shape, value, np.float32) for shape in shapes]
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 1, {"site": site})


@pytest.fixture
def strategy():
    manager = SimpleClientManager()
    for name in "ab":
        manager.register(Proxy(name))
    strategy = DPFact((5, 7), solver=SOLVER, privacy=NONE,
                      run=RunSettings(rounds=1, min_sites=1, wait_timeout=1.0))  # fmt: skip
    start = strategy.initialize_parameters(manager)
    asked = strategy.configure_fit(1, start, manager)
    assert len(asked) == 2
    return strategy


def test_a_bad_result_is_reported_and_the_other_counts(strategy):
    bad = result("b", shapes=((5, 4), (8, 4)))
    parameters, metrics = strategy.aggregate_fit(1, [(Proxy("a"), result()), (Proxy("b"), bad)], [])
    assert parameters is not None
    assert metrics == {"sites": 1, "failures": 1}
    assert "need shapes" in strategy.coordinator.records[0].failures[0].reason


def test_failures_and_silence_are_noted(strategy):
    strategy.aggregate_fit(1, [], [ValueError("gone")])
    (record,) = strategy.coordinator.records
    assert [failure.reason for failure in record.failures] == ["gone", "no reply"]
    assert not record.updated


def test_damaged_arrays_do_not_stop_the_run(strategy):
    bad = result("b")
    bad.parameters.tensors[0] = b"not an array"
    _, metrics = strategy.aggregate_fit(1, [(Proxy("a"), result()), (Proxy("b"), bad)], [])
    assert metrics["failures"] == 1


def test_waiting_is_bounded():
    strategy = DPFact((5, 7), solver=SOLVER, privacy=NONE,
                      run=RunSettings(min_sites=2, wait_timeout=1.0))  # fmt: skip
    manager = SimpleClientManager()
    manager.register(Proxy("a"))
    with pytest.raises(QuorumError, match=r"1 site\(s\) connected"):
        strategy.configure_fit(1, strategy.initialize_parameters(manager), manager)
