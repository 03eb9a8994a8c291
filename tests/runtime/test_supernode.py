"""How messages are asked for; a real SuperNode is asked in `test_secure_deployment`."""

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskResponse, PushTaskOutputRequest
from flwr.proto.task_pb2 import Task
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    pull_objects,
)

from dpfact_flower.errors import SettingsError
from dpfact_flower.runtime import supernode
from dpfact_flower.runtime.supernode import Claimed, Tasks, while_they_come


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


class Clock:
    """Seconds that go on by as many with each look."""

    def __init__(self, step):
        self.step, self.seconds = step, 0.0

    def __call__(self):
        self.seconds += self.step
        return self.seconds


def parts(come: dict[str, bytes], late: dict[str, int]):
    """What pulls parts of a message: some come after so many tries, others never."""

    def pull(identifier: str) -> bytes:
        late[identifier] = late.get(identifier, 0) - 1
        if identifier not in come or late[identifier] >= 0:
            raise ObjectUnavailableError(identifier)
        return come[identifier]

    return pull


def test_a_message_whose_parts_never_come_is_given_up():
    """Its server ended while it sent: with Flower's own patience the site answered nobody."""
    pull = while_they_come(parts({"a": b"1"}, {}), patience=60, now=Clock(13))
    with pytest.raises(ObjectPullError, match="no part of the message has come for 60 s"):
        pull_objects(["a", "b"], pull, initial_backoff=0.001)


def test_a_message_that_comes_slowly_is_fetched_whole():
    come = {str(part): bytes([part]) for part in range(8)}
    slow = {str(part): part for part in range(8)}  # in all longer than the patience
    pull = while_they_come(parts(come, slow), patience=60, now=Clock(7))
    found = pull_objects(list(come), pull, max_concurrent_pulls=1, initial_backoff=0.001)
    assert found == come


def test_a_supernode_that_stays_away_is_not_waited_for_without_end(monkeypatch):
    """The executor would have no other message, and would not end."""
    monkeypatch.setattr(supernode, "_AWAY_SECONDS", 0.0)
    claimed = Claimed("127.0.0.1:9", "token")

    def waits(seconds):
        raise AssertionError(seconds)

    claimed._retries.wait_function = waits
    with pytest.raises(httpx.ConnectError):
        claimed._client.PushTaskOutput(PushTaskOutputRequest())
