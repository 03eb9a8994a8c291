"""How messages are asked for; a real SuperNode is asked in `test_secure_deployment`."""

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskResponse, PushTaskOutputRequest
from flwr.proto.task_pb2 import Task

from dpfact_flower.errors import SettingsError
from dpfact_flower.runtime import supernode
from dpfact_flower.runtime.supernode import Claimed, Tasks


class Client:
    """Stands for the connection: answers each request with the same, or fails."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def AcquireTask(self, request):  # noqa: N802 - Flower's name
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def tasks(answer) -> tuple[Tasks, Client]:
    found, client = Tasks("127.0.0.1:9", b"x" * 32), Client(answer)
    found._client = client
    return found, client


def failed(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1:9")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status))


def test_only_messages_for_a_clientapp_are_asked_for():
    found, client = tasks(AcquireTaskResponse(task=Task(task_id=1), token="t"))
    assert found.claim() == "t"
    (request,) = client.asked
    assert list(request.supported_task_types) == ["flwr-clientapp"]
    assert list(request.agentapp_fab_hashes) == []


@pytest.mark.parametrize(
    ("answer", "token"),
    [(AcquireTaskResponse(), ""), (httpx.ConnectError(""), None), (failed(503), None)],
)
def test_no_message_and_no_supernode_are_told_apart(answer, token):
    assert tasks(answer)[0].claim() == token


@pytest.mark.parametrize("status", [401, 403])
def test_a_supernode_with_another_secret_ends_the_executor(status):
    with pytest.raises(SettingsError, match="another secret"):
        tasks(failed(status))[0].claim()


def test_a_supernode_that_stays_away_is_not_waited_for_without_end(monkeypatch):
    """The executor would have no other message, and would not end."""
    monkeypatch.setattr(supernode, "_AWAY_SECONDS", 0.0)
    claimed = Claimed("127.0.0.1:9", "token")

    def waits(seconds):
        raise AssertionError(seconds)

    claimed._retries.wait_function = waits
    with pytest.raises(httpx.ConnectError):
        claimed._client.PushTaskOutput(PushTaskOutputRequest())
