"""A legacy ServerApp (`server_fn`, ServerAppComponents) drives the same ClientApp."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager

from dpfact_flower.errors import QuorumError
from dpfact_flower.legacy import DPFact
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings

SOLVER = SolverSettings(rank=4)
NONE = PrivacySettings(privacy="none")
A, B = SimpleNamespace(cid="a"), SimpleNamespace(cid="b")
"""The part of a ClientProxy that the strategy needs."""


def result(site="a", value=0.5, shapes=((5, 4), (7, 4))) -> FitRes:
    arrays = [np.full(shape, value, np.float32) for shape in shapes]
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 1, {"site": site})


@pytest.fixture
def strategy():
    manager = SimpleClientManager()
    for proxy in (A, B):
        manager.register(proxy)
    strategy = DPFact((5, 7), solver=SOLVER, privacy=NONE,
                      run=RunSettings(rounds=1, min_sites=1, wait_timeout=1.0))  # fmt: skip
    asked = strategy.configure_fit(1, strategy.initialize_parameters(manager), manager)
    assert len(asked) == 2
    return strategy


@pytest.mark.parametrize("damage", [b"not an array", b"", b"PK\3\4"])
def test_bad_results_are_reported_and_the_other_counts(strategy, damage):
    bad, damaged = result("b", shapes=((5, 4), (8, 4))), result("c")
    damaged.parameters.tensors[0] = damage
    parameters, metrics = strategy.aggregate_fit(1, [(A, result()), (B, bad), (B, damaged)], [])
    assert parameters is not None
    assert metrics == {"sites": 1, "failures": 2}
    assert "need shapes" in strategy.coordinator.records[0].failures[0].reason


def test_failures_and_silence_are_noted(strategy):
    strategy.aggregate_fit(1, [], [ValueError("gone")])
    (record,) = strategy.coordinator.records
    assert [failure.reason for failure in record.failures] == ["gone", "no reply"]
    assert not record.updated


def test_waiting_is_bounded():
    strategy = DPFact((5, 7), solver=SOLVER, privacy=NONE,
                      run=RunSettings(min_sites=2, wait_timeout=1.0))  # fmt: skip
    manager = SimpleClientManager()
    manager.register(A)
    with pytest.raises(QuorumError, match=r"1 site\(s\) connected"):
        strategy.configure_fit(1, strategy.initialize_parameters(manager), manager)
