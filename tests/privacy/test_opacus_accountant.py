import importlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant, create_accountant
from opacus.accountants.analysis import rdp as analysis

from dpfact_flower.errors import MissingDependencyError, SettingsError
from dpfact_flower.privacy.conversions import RDP_ORDERS, epsilon_rdp, epsilon_zcdp_tight
from dpfact_flower.privacy.opacus_accountant import ZCDPAccountant, register

HISTORIES = [[(7.0, 1.0, 30)], [(60.0, 1.0, 20), (30.0, 1.0, 20)], [(1.3, 1.0, 1), (2.5, 1.0, 4)]]


def after(history, kind=ZCDPAccountant):
    accountant = kind()
    for multiplier, rate, steps in history:
        for _ in range(steps):
            accountant.step(noise_multiplier=multiplier, sample_rate=rate)
    return accountant


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("delta", [1e-8, 1e-4])
def test_full_batch_epsilon_is_the_tight_zcdp_conversion_and_our_rdp_that_of_opacus(history, delta):
    rho = sum(steps / (2 * multiplier**2) for multiplier, _, steps in history)
    accountant = after(history, RDPAccountant)
    ours, theirs = after(history).get_epsilon(delta), accountant.get_epsilon(delta)
    assert after(history).history == history
    assert ours == pytest.approx(epsilon_zcdp_tight(rho, delta), rel=1e-12)
    # The same bound, at the best order instead of the best order on a list.
    assert theirs * 0.99 <= ours <= theirs * (1 + 1e-9)
    theirs, _ = accountant.get_privacy_spent(delta=delta, alphas=list(RDP_ORDERS))
    assert epsilon_rdp(rho, delta) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("order", np.geomspace(64, 700, 25))
def test_whatever_order_is_best_one_beside_it_is_tried(order):
    """With orders 3/2 apart, the best is off by at most sqrt(3/2), which costs about 2 %.

    The factor is (1.225 + 1 / 1.225) / 2 = 1.021, except for small terms. For orders a factor of 2
    apart, it would be 1.061.
    """
    delta = 1e-5
    rho = -math.log(delta) / (order - 1) ** 2  # for which this order is nearly the best
    best = epsilon_zcdp_tight(rho, delta)
    assert best * (1 - 1e-9) <= epsilon_rdp(rho, delta) <= best * 1.025


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_no_order_is_beyond_what_the_analysis_can_add_up(rate):
    """Above 1029, a binomial coefficient exceeds float64, and the cost would not be a number."""
    costs = analysis.compute_rdp(q=rate, noise_multiplier=2.0, steps=1, orders=RDP_ORDERS)
    assert np.isfinite(costs).all()
    assert [*RDP_ORDERS] == [*RDPAccountant.DEFAULT_ALPHAS, 64, 96, 128, 192, 256, 384, 512, 768]


def test_subsampled_steps_are_composed_by_opacus_rdp():
    history = [(1.1, 0.02, 200)]
    ours = after(history).get_epsilon(1e-5)
    assert ours == pytest.approx(after(history, RDPAccountant).get_epsilon(1e-5), rel=1e-9)
    assert ours >= after(history, PRVAccountant).get_epsilon(1e-5) - 0.01
    assert ours < after([(1.1, 1.0, 200)]).get_epsilon(1e-5) / 10


@pytest.mark.parametrize("rate", [(1 / 49) * 49, 1 + 1e-15, 1 + 1e-9])
def test_a_rate_that_misses_one_by_rounding_is_the_full_batch(rate):
    assert rate != 1
    assert after([(5.0, rate, 2)]).get_epsilon(1e-5) == after([(5.0, 1.0, 2)]).get_epsilon(1e-5)


def test_a_step_without_noise_spends_everything_and_no_step_nothing():
    assert after([(5.0, 1.0, 3), (0.0, 1.0, 1)]).get_epsilon(1e-5) == math.inf
    assert after([]).get_epsilon(1e-5) == after([(99.0, 0.01, 1)]).get_epsilon(0.9) == 0


def test_register_is_idempotent():
    register()
    register()
    assert type(create_accountant("zcdp")) is ZCDPAccountant
    assert ZCDPAccountant.mechanism() == "zcdp"


def test_state_survives_a_round_trip_through_json():
    before = after([(2.0, 1.0, 3), (1.0, 0.1, 2)])
    state = json.loads(json.dumps(before.state_dict()))
    restored = ZCDPAccountant()
    restored.load_state_dict(state)
    assert restored.get_epsilon(1e-5) == before.get_epsilon(1e-5)
    restored.step(noise_multiplier=1.0, sample_rate=0.1)
    assert len(restored) == 6
    assert len(before) == 5


BAD_STEPS = {"noise_multiplier": (-1.0, math.nan, math.inf), "sample_rate": (0.0, 1.1, math.nan)}


@pytest.mark.parametrize(("name", "value"), [(k, bad) for k in BAD_STEPS for bad in BAD_STEPS[k]])
def test_bad_step_is_refused_and_not_charged_and_so_is_a_bad_history(name, value):
    accountant, step = ZCDPAccountant(), {"noise_multiplier": 1.0, "sample_rate": 1.0, name: value}
    with pytest.raises(SettingsError, match=name):
        accountant.step(**step)
    assert len(accountant) == 0
    accountant.load_state_dict({"history": [(*step.values(), 1)], "mechanism": "zcdp"})
    with pytest.raises(SettingsError, match=name):
        accountant.get_epsilon(1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_bad_delta_is_refused(delta):
    for accountant in (ZCDPAccountant(), after(HISTORIES[0])):
        with pytest.raises(SettingsError, match="delta"):
            accountant.get_epsilon(delta)


@pytest.mark.slow
def test_opacus_trains_with_our_accountant():
    register()
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(16, 3), torch.randn(16, 1))
    model = torch.nn.Linear(3, 1)
    engine = PrivacyEngine(accountant="zcdp")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=16),
        noise_multiplier=4.0, max_grad_norm=1.0, poisson_sampling=False,
    )  # fmt: skip
    for _ in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    assert engine.accountant.history == [(4.0, 1.0, 3)]
    assert engine.get_epsilon(1e-5) == pytest.approx(epsilon_zcdp_tight(3 / (2 * 16), 1e-5))


def test_without_opacus_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    monkeypatch.delitem(sys.modules, "dpfact_flower.privacy.opacus_accountant")
    with pytest.raises(MissingDependencyError, match=r"dpfact-flower\[opacus\]"):
        importlib.import_module("dpfact_flower.privacy.opacus_accountant")


@pytest.mark.nightly
@pytest.mark.process
def test_the_root_logger_is_left_alone():
    code = """
import logging, dpfact_flower.privacy.opacus_accountant
assert (logging.root.handlers, logging.root.level) == ([], logging.WARNING)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
