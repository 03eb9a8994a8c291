"""One message at a hospital: its own settings and the installed app decide, whatever else came."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dpfact_flower.runtime import clientapp
from dpfact_flower.runtime.worker import Question
from dpfact_flower.site.disclosure import ReplyDelay

CANARY = "canary-4711"


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Without which Flower makes no message."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 7)


@pytest.fixture
def settings(tmp_path, cohort_folder):
    return {
        "site": "site-1", "data-path": f"{cohort_folder}/site-1.npz",
        "state-dir": f"{tmp_path}/state", "allow-privacy": "none",
    }  # fmt: skip


def reason(settings, kind: str = "train") -> str:
    """Of the refusal of a message with whatever a SuperLink may have put in."""
    message = Message(RecordDict({"x": ConfigRecord({"x": CANARY})}), 7, kind)
    reply = clientapp.answer(Question(message, 1, 7, settings), 0.0)
    assert reply.has_error()
    return reply.error.reason


@pytest.mark.parametrize(
    ("kind", "code"),
    [("train", "message"), ("evaluate", "privacy-refused"), ("query", "message"),
     ("train.other", "internal")],
)  # fmt: skip
def test_whatever_is_asked_is_refused_with_a_code_that_leaves_at_its_time(
    settings, kind, code, monkeypatch
):
    slept = []
    monkeypatch.setattr(ReplyDelay, "wait", lambda self: slept.append(self._seconds))
    said = reason({**settings, "reply-after": 7.0}, kind)
    assert said == f"dpfact:{code} (details are in the site's own log)"
    assert slept == [7.0]


def test_nothing_of_an_unexpected_error_leaves(settings, monkeypatch, caplog):
    def app(message, context):
        raise ValueError(CANARY)

    monkeypatch.setattr(clientapp, "app", app)
    assert reason(settings).startswith("dpfact:internal")
    assert CANARY not in caplog.text
