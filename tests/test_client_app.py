"""The ClientApp with both generations of strategies."""

import pickle
import subprocess
import sys
from functools import cache
from importlib.metadata import entry_points

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.common import parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.serverapp.strategy import FedAvg

from dpfact_flower import legacy
from dpfact_flower.client_app import app as client_app
from dpfact_flower.client_app import client_for, train
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.strategy import DPFact
from dpfact_flower.wire import records
from tests.bits import assert_bits
from tests.runtime.deployment import site_config
from tests.site.federation import make_request


@pytest.fixture
def request_wire():
    return make_request().to_wire()


@pytest.fixture
def grid(cohort_folder, tmp_path):
    return InProcessGrid(client_app, simulated(3), run_config(cohort_folder, tmp_path))


def run_config(cohort_folder, tmp_path):
    return {"data": str(cohort_folder), "out": str(tmp_path / "run")}


def simulated(total):
    return [{"partition-id": n, "num-partitions": total} for n in range(total)]


def send(grid, content, kind=MessageType.TRAIN, node=0) -> Message:
    (reply,) = grid.send_and_receive([Message(content, grid.get_node_ids()[node], kind)])
    return reply


ANSWER = """
import pickle, sys
from dpfact_flower.wire import records
from dpfact_flower.client_app import app
from dpfact_flower.runtime.grid import InProcessGrid
from flwr.app import Message
node, wire = pickle.load(sys.stdin.buffer)
(reply,) = InProcessGrid(app, [node]).send_and_receive([Message(records.ask(*wire), 2, "train")])
assert not reply.has_error(), reply.error
heavy = {"torch", "matplotlib", "sklearn", "opacus", "dp_accounting", "duckdb", "ray", "pandas",
         "jinja2", "scipy.optimize", "scipy.sparse", "scipy.stats"}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.process
@pytest.mark.parametrize("privacy", ["none", "patient"])
def test_a_sites_path_to_an_answer_is_light(cohort, tmp_path, request_wire, privacy):
    """A site starts a new process for every message, which must import none of these."""
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


def test_a_request_is_the_one_that_flowers_own_clients_read(request_wire):
    arrays, config = request_wire
    fitins = compat.recorddict_to_fitins(records.ask(arrays, config), True)
    assert fitins.config == config
    assert_bits(parameters_to_ndarrays(fitins.parameters), arrays)


def test_a_reply_is_the_one_that_flowers_own_servers_read(grid, request_wire):
    fitres = compat.recorddict_to_fitres(send(grid, records.ask(*request_wire)).content, True)
    assert fitres.num_examples == 1
    assert fitres.metrics == {"site": "site-1"}
    assert fitres.status.code.value == 0
    assert len(fitres.parameters.tensors) == 2


def test_a_virtual_client_without_a_site_is_told(cohort_folder, tmp_path, request_wire, caplog):
    grid = InProcessGrid(client_app, simulated(5), run_config(cohort_folder, tmp_path))
    assert send(grid, records.ask(*request_wire), node=4).error.reason.startswith("dpfact:message")
    assert "num-supernodes=3" in caplog.text


def test_a_real_site_answers_from_its_node_config(cohort_folder, tmp_path, request_wire):
    node = site_config(cohort_folder, tmp_path, "site-2") | {"site": "north", "data-site": "site-2"}
    reply = send(InProcessGrid(client_app, [node]), records.ask(*request_wire))
    assert reply.content["fitres.metrics"]["site"] == "north"
    assert (tmp_path / "state-site-2" / "north" / "ledger.sqlite").exists()
    assert (tmp_path / "state-site-2" / "north" / "job" / "state-000001.npz").exists()


@pytest.mark.parametrize("ask", ["train", "query"])
def test_another_hospitals_file_is_refused_before_anything_is_charged(
    cohort_folder, tmp_path, request_wire, caplog, ask
):
    """Its patients would be released again and charged to this hospital's budget."""
    node = site_config(cohort_folder, tmp_path, "site-2") | {"site": "site-1"}
    for more, says in ({}, "site is 'site-1'"), ({"data-site": "site-3"}, "data-site is 'site-3'"):
        reply = send(InProcessGrid(client_app, [{**node, **more}]), records.ask(*request_wire), ask)
        assert reply.error.reason.startswith("dpfact:settings")
        assert f"the file belongs to site 'site-2', but {says}" in caplog.text
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "content",
    [RecordDict(), RecordDict({"config": ConfigRecord({"job": "x"})})],
    ids=["empty", "no arrays"],
)
def test_a_foreign_message_gets_a_code(grid, content):
    assert send(grid, content).error.reason.startswith("dpfact:message")


def test_a_stock_fedavg_is_told_that_it_is_not_dpfact(grid, request_wire, caplog, capfd):
    arrays, _ = request_wire
    strategy = FedAvg(min_available_nodes=3, fraction_evaluate=0.0)
    result = strategy.start(grid, records.ask(arrays, {})["fitins.parameters"], num_rounds=1)
    assert not result.train_metrics_clientapp.get(1)
    assert "the server must run the strategy dpfact_flower.DPFact" in caplog.text
    assert "Traceback" not in caplog.text + capfd.readouterr().err


def extra_config_mod(message: Message, context, call_next) -> Message:
    """A mod that adds its own entries to messages, as Flower's mods do."""
    if not message.has_error():
        for record in message.content.config_records.values():
            record["extra"], record["more"] = "x", 1.5
    reply = call_next(message, context)
    reply.content["extra"] = MetricRecord({"seconds": 0.1})
    reply.content.config_records["fitres.metrics"]["extra"] = 2
    return reply


def bare(client_for) -> ClientApp:
    return client_app


def around_the_client(client_for) -> ClientApp:
    return ClientApp(client_fn=lambda context: client_for(context).to_client())


def own_with_mods(client_for) -> ClientApp:
    made = ClientApp(mods=[message_size_mod, arrays_size_mod, extra_config_mod])
    made.train()(train)
    return made


def by_messages(settings, grid) -> DPFact:
    strategy = DPFact((9, 12), **settings)
    strategy.start(grid)
    return strategy


def by_a_legacy_server(settings, grid) -> legacy.DPFact:
    strategy = legacy.DPFact((9, 12), **settings)

    def server_fn(context):
        config = ServerConfig(num_rounds=strategy.coordinator.rounds)
        return ServerAppComponents(strategy=strategy, config=config)

    ServerApp(server_fn=server_fn)(grid, Context(1, 1, {}, RecordDict(), {}))
    return strategy


SEEDED = {"none": {}, "patient": {"noise_seed": 7, "patients": 95}}


def settings_of(privacy):
    seeded = PrivacySettings(privacy=privacy, **SEEDED[privacy])
    run = RunSettings(rounds=2, seed=5, sites=3)
    return {"solver": SolverSettings(rank=4), "privacy": seeded, "run": run}


@pytest.fixture(scope="module")
def plain_run(cohort, tmp_path_factory):
    """Returns the factors of a run with the plain app in a given mode."""
    folder = tmp_path_factory.mktemp("plain")
    cohort.save(folder)

    @cache
    def factors(privacy):
        grid = InProcessGrid(client_app, simulated(3), run_config(folder, folder / privacy))
        return by_messages(settings_of(privacy), grid).coordinator.factors

    return factors


@pytest.mark.slow
@pytest.mark.parametrize("privacy", ["none", "patient"])
@pytest.mark.parametrize("served", [by_messages, by_a_legacy_server])
@pytest.mark.parametrize("made", [bare, around_the_client, own_with_mods])
def test_any_client_app_serves_both_generations(
    made, served, privacy, plain_run, cohort_folder, tmp_path
):
    strategy = served(settings_of(privacy), InProcessGrid(
        made(client_for), simulated(3), run_config(cohort_folder, tmp_path)
    ))  # fmt: skip
    records_of_rounds = strategy.coordinator.records
    assert [r.failures for r in records_of_rounds] == [()] * strategy.coordinator.rounds
    assert {r.sites for r in records_of_rounds} == {("site-1", "site-2", "site-3")}
    assert_bits(strategy.coordinator.factors, plain_run(privacy))


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"partition-id": 0, "num-partitions": 3, "allow-privacy": "none"}, "simulated site"),
        ({"data-path": ""}, "data-path: must be set"),
        ({"max_epsilon": 0.5}, "did you mean 'max-epsilon'"),
        ({"max-epsilo": 0.5}, "did you mean 'max-epsilon'"),
    ],
)
def test_a_hospitals_settings_all_count(cohort_folder, tmp_path, request_wire, caplog, node, says):
    real = {"data-path": str(cohort_folder / "site-1.npz"), "state-dir": str(tmp_path / "s")}
    grid = InProcessGrid(client_app, [{**real, **node}], run_config(cohort_folder, tmp_path))
    assert send(grid, records.ask(*request_wire)).error.reason.startswith("dpfact:settings")
    assert says in caplog.text
    assert not (tmp_path / "s").exists()


def test_a_supernodes_site_is_not_simulated(
    cohort_folder, tmp_path, request_wire, caplog, monkeypatch
):
    (script,) = entry_points(group="console_scripts", name="flwr-clientapp")  # of Flower
    monkeypatch.setattr(sys, "argv", [f"/opt/bin/{script.name}"])
    grid = InProcessGrid(client_app, simulated(3), run_config(cohort_folder, tmp_path))
    assert send(grid, records.ask(*request_wire)).error.reason.startswith("dpfact:settings")
    assert "a SuperNode needs data-path, state-dir and max-epsilon instead" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [({"max-epsilo": 0.5}, "settings", "epsilo"),
     ({"data-path": "/of/north/patients.npz"}, "data", "north")],
)  # fmt: skip
def test_what_a_client_fn_cannot_use_leaves_as_a_code(
    cohort_folder, tmp_path, request_wire, caplog, wrong, code, says
):
    real = {"data-path": str(cohort_folder / "site-1.npz"), "state-dir": str(tmp_path / "s")}
    grid = InProcessGrid(around_the_client(client_for), [real | wrong])
    reason = send(grid, records.ask(*request_wire)).error.reason
    assert f"dpfact:{code}" in reason
    assert says not in reason
    assert says in caplog.text
