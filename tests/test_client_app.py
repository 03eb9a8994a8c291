"""The ClientApp behind both generations of strategies."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.compat.common import recorddict_compat as compat
from flwr.serverapp.strategy import FedAvg

from dpfact_flower.client import DPFactClient
from dpfact_flower.client_app import app
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, SiteSettings, SolverSettings
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest


@pytest.fixture
def request_wire():
    return RoundRequest(
        job="job", round=1, rounds=2, seed=0, solver=SolverSettings(rank=4),
        privacy=PrivacySettings(privacy="none"), vocabulary="",
        anchors=initial_factors((9, 12), 4, 0),
    ).to_wire()  # fmt: skip


@pytest.fixture
def grid(cohort_folder, tmp_path):
    return InProcessGrid(app, simulated(3), run_config(cohort_folder, tmp_path))


def run_config(cohort_folder, tmp_path):
    return {"data": str(cohort_folder), "out": str(tmp_path / "run")}


def simulated(total):
    return [{"partition-id": n, "num-partitions": total} for n in range(total)]


def send(grid, content, kind=MessageType.TRAIN, node=0) -> Message:
    message = Message(content, grid.get_node_ids()[node], kind)
    (reply,) = grid.send_and_receive([message])
    return reply


def legacy_ask(arrays, config) -> RecordDict:
    content = records.ask(arrays, config)
    return RecordDict({"fitins.parameters": content["arrays"], "fitins.config": content["config"]})


ANSWER = """
import pickle, sys
from dpfact_flower import records
from dpfact_flower.client_app import app
from dpfact_flower.grid import InProcessGrid
from flwr.app import Message
node, wire = pickle.load(sys.stdin.buffer)
(reply,) = InProcessGrid(app, [node]).send_and_receive([Message(records.ask(*wire), 2, "train")])
assert not reply.has_error(), reply.error
heavy = {"torch", "matplotlib", "sklearn", "opacus", "dp_accounting", "duckdb", "ray", "pandas",
         "statsmodels", "jinja2", "scipy.optimize", "scipy.sparse", "scipy.stats"}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("privacy", ["none", "patient"])
def test_a_sites_path_to_an_answer_is_light(cohort, tmp_path, request_wire, privacy):
    """A site's process starts anew for every message: none of these may be on its path."""
    cohort.sites[0].save(tmp_path / "site.npz")
    node = {"data-path": str(tmp_path / "site.npz"), "state-dir": str(tmp_path / "state"),
            "allow-privacy": privacy}  # fmt: skip
    if privacy == "patient":
        node["max-epsilon"] = 5.0
        request_wire = Coordinator(
            cohort.sites[0].tensor.feature_shape, solver=SolverSettings(rank=4)
        ).request(1).to_wire()  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", ANSWER], input=pickle.dumps((node, request_wire)),
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.splitlines()[-1] == b"[]"


def test_both_record_layouts_get_the_same_arrays(grid, request_wire):
    new = send(grid, records.ask(*request_wire)).content
    old = send(grid, legacy_ask(*request_wire)).content
    pairs = zip(
        new["arrays"].to_numpy_ndarrays(),
        old["fitres.parameters"].to_numpy_ndarrays(),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)
    assert new["config"]["site"] == old["fitres.metrics"]["site"] == "site-1"
    assert new["metrics"]["num-examples"] == old["fitres.num_examples"]["num_examples"] == 1


def test_the_legacy_layout_is_the_one_flower_reads(grid, request_wire):
    fitres = compat.recorddict_to_fitres(send(grid, legacy_ask(*request_wire)).content, True)
    assert fitres.num_examples == 1
    assert fitres.status.code.value == 0
    assert len(fitres.parameters.tensors) == 2


def test_each_partition_is_a_site(grid, request_wire):
    names = [send(grid, records.ask(*request_wire), node=n).content["config"]["site"]
             for n in range(3)]  # fmt: skip
    assert names == ["site-1", "site-2", "site-3"]


def test_a_virtual_client_without_a_site_is_told(cohort_folder, tmp_path, request_wire, caplog):
    grid = InProcessGrid(app, simulated(5), run_config(cohort_folder, tmp_path))
    reply = send(grid, records.ask(*request_wire), node=4)
    assert reply.error.reason.startswith("dpfact:message")
    assert "num-supernodes=3" in caplog.text


def test_a_real_site_needs_its_node_config(cohort_folder, request_wire, caplog):
    reply = send(InProcessGrid(app, [{"site": "a"}]), records.ask(*request_wire))
    assert reply.error.reason.startswith("dpfact:settings")
    assert "data-path" in caplog.text


def test_a_real_site_answers_from_its_node_config(cohort_folder, tmp_path, request_wire):
    node = {
        "site": "north", "data-path": str(cohort_folder / "site-2.npz"),
        "state-dir": str(tmp_path / "north"), "allow-privacy": "none",
    }  # fmt: skip
    reply = send(InProcessGrid(app, [node]), records.ask(*request_wire))
    assert reply.content["config"]["site"] == "north"
    assert (tmp_path / "north" / "north" / "ledger.sqlite").exists()
    assert (tmp_path / "north" / "north" / "job" / "state-000001.npy").exists()


@pytest.mark.parametrize(
    "content",
    [RecordDict(), RecordDict({"config": ConfigRecord({"job": "x"})})],
    ids=["empty", "no arrays"],
)
def test_a_foreign_message_gets_a_code(grid, content):
    assert send(grid, content).error.reason.startswith("dpfact:message")


def test_evaluation_is_refused_with_a_code(grid, request_wire):
    reply = send(grid, records.ask(*request_wire), MessageType.EVALUATE)
    assert reply.error.reason.startswith("dpfact:privacy-refused")


def test_a_stock_fedavg_is_told_that_it_is_not_dpfact(grid, request_wire, caplog, capfd):
    arrays, _ = request_wire
    strategy = FedAvg(min_available_nodes=3, fraction_evaluate=0.0)
    result = strategy.start(grid, records.ask(arrays, {})["arrays"], num_rounds=1, timeout=10)
    assert not result.train_metrics_clientapp.get(1)
    assert "the server must run the strategy dpfact_flower.DPFact" in caplog.text
    assert "Traceback" not in caplog.text + capfd.readouterr().err


def test_a_numpyclient_app_of_the_old_kind_works_too(cohort, cohort_folder, tmp_path, request_wire):
    """`ClientApp(client_fn=...)` around DPFactClient, as in a legacy deployment."""
    settings = SiteSettings(state_dir=str(tmp_path / "s"), allow_privacy="none")

    def client_fn(context):
        return DPFactClient(cohort.sites[0], settings).to_client()

    reply = send(InProcessGrid(ClientApp(client_fn=client_fn), [{}]), legacy_ask(*request_wire))
    assert reply.content["fitres.metrics"]["site"] == "site-1"


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"partition-id": 0, "num-partitions": 3, "allow-privacy": "none"}, "simulated site"),
        ({"max_epsilon": 0.5}, "did you mean 'max-epsilon'"),
        ({"max-epsilo": 0.5}, "did you mean 'max-epsilon'"),
    ],
)
def test_a_hospitals_settings_are_never_passed_over(
    cohort_folder, tmp_path, request_wire, caplog, node, says
):
    real = {"data-path": str(cohort_folder / "site-1.npz"), "state-dir": str(tmp_path / "s")}
    grid = InProcessGrid(app, [{**real, **node}], run_config(cohort_folder, tmp_path))
    assert send(grid, records.ask(*request_wire)).error.reason.startswith("dpfact:settings")
    assert says in caplog.text
    assert not (tmp_path / "s").exists()
