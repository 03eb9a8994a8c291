"""One message at a hospital: its own settings and the installed app decide, whatever else came."""

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dpfact_flower.runtime import clientapp
from dpfact_flower.runtime.supernode import Work
from dpfact_flower.site.hold import Hold

CANARY = "canary-4711"


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Which message this process answers, as `Claimed` has Flower note."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 7)


@pytest.fixture
def config(tmp_path, cohort_folder):
    path = tmp_path / "site-1.toml"
    path.write_text(
        f'site = "site-1"\ndata-path = "{cohort_folder}/site-1.npz"\n'
        f'state-dir = "{tmp_path}/state"\nallow-privacy = "none"\n'
    )
    return path


def work(kind: str = "train", **node_config) -> Work:
    """A message as a SuperNode hands it on, with whatever a SuperLink may have put in."""
    message = Message(RecordDict({"x": ConfigRecord({"x": CANARY})}), 7, kind)
    sent = Context(1, 7, node_config, RecordDict(), {"data": CANARY})
    return Work(message, node_config, sent, None)


def reason(config, found: Work) -> str:
    reply = clientapp.answer(found, config)
    assert reply.has_error()
    return reply.error.reason


def test_a_message_is_answered_by_the_installed_app_with_the_hospitals_settings(
    config, monkeypatch
):
    seen = {}

    def app(message, context):
        seen.update(node=context.node_config, run=context.run_config, state=dict(context.state))
        return message

    monkeypatch.setattr(clientapp, "app", app)
    found = work()
    assert clientapp.answer(found, config) is found.message
    assert seen["node"]["site"] == "site-1"
    assert seen["run"] == {}  # nothing of what came with the run
    assert seen["state"] == {}


def test_a_supernode_that_has_settings_too_is_refused(config, caplog):
    assert reason(config, work(**{"max-epsilon": 99.0})).startswith("dpfact:settings")
    assert "start the SuperNode without one" in caplog.text


@pytest.mark.parametrize(
    ("kind", "code"),
    [("train", "message"), ("evaluate", "privacy-refused"), ("query", "message"),
     ("train.other", "internal")],
)  # fmt: skip
def test_what_the_app_does_not_know_is_refused_with_a_code(config, kind, code):
    said = reason(config, work(kind))
    assert said == f"dpfact:{code} (details are in the site's own log)"


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "train.other"])
def test_whatever_is_asked_the_reply_leaves_at_its_time(config, kind, monkeypatch):
    slept = []
    monkeypatch.setattr(Hold, "wait", lambda self: slept.append(self._seconds))
    config.write_text(f"{config.read_text()}reply-after = 7.0\n")
    assert reason(config, work(kind)).startswith("dpfact:")
    assert slept == [7.0]


def test_settings_that_are_damaged_between_two_messages_refuse_the_next(config):
    config.write_text('site = "site-1"')
    assert reason(config, work()).startswith("dpfact:settings")


def test_nothing_of_an_unexpected_error_leaves(config, monkeypatch, caplog):
    def app(message, context):
        raise ValueError(CANARY)

    monkeypatch.setattr(clientapp, "app", app)
    assert reason(config, work()).startswith("dpfact:internal")
    assert CANARY not in caplog.text
