"""The hospital's own executor without a SuperNode; `test_secure_deployment` has one."""

import os
import resource
import signal
from contextlib import nullcontext
from unittest import mock

import pytest

from dpfact_flower.errors import MissingDependencyError, SettingsError
from dpfact_flower.machine import flower
from dpfact_flower.runtime import executor
from tests.crash import Killed

WHOLE = 'site = "north"\ndata-path = "/d/n.npz"\nstate-dir = "{}/state"\n'


class Tasks:
    """A SuperNode that returns the given tokens, and then ends the test."""

    def __init__(self, *tokens):
        self.tokens = list(tokens)

    def claim(self):
        if not self.tokens:
            raise Killed
        if self.tokens[0] == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
        return self.tokens.pop(0)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "north.toml"
    path.write_text(WHOLE.format(tmp_path))
    return path


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(os.urandom(32))
    return path


@pytest.fixture(autouse=True)
def unchanged():
    """Restore what an executor changes in its own process."""
    mask = os.umask(0o022)
    dump = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (dump[1], dump[1]))
    handler = signal.getsignal(signal.SIGTERM)
    with mock.patch.dict(os.environ):
        yield
    signal.signal(signal.SIGTERM, handler)
    resource.setrlimit(resource.RLIMIT_CORE, dump)
    os.umask(mask)


@pytest.mark.parametrize("version", ["1.40.2", "1.43.0", "2.0.0"])
def test_with_another_flower_nothing_is_started(config, secret, tmp_path, monkeypatch, version):
    monkeypatch.setattr(flower, "version", lambda name: version)
    monkeypatch.setattr(executor, "_serve", None)
    with pytest.raises(MissingDependencyError, match=rf"Flower {version}"):
        executor.execute(config, secret, 1)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("content", [b"", b"x" * 31])
def test_a_secret_that_can_be_guessed_is_refused(config, secret, content):
    secret.write_bytes(content)
    with pytest.raises(SettingsError, match="32 bytes or more"):
        executor.execute(config, secret, 1)


def test_it_has_no_telemetry_no_proxy_and_folders_of_its_own(config, secret, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example")
    monkeypatch.setenv("http_proxy", "http://proxy.example")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    seen = {}
    monkeypatch.setattr(executor, "_serve", lambda *_: seen.update(os.environ))
    executor.execute(config, secret, 1)
    assert seen["FLWR_TELEMETRY_ENABLED"] == "0"
    assert not [key for key in seen if key.lower().endswith("_proxy")]
    folder = tmp_path / "state" / ".machine-code"
    assert seen["NUMBA_CACHE_DIR"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    # A core dump would contain patients' data.
    assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0


@pytest.mark.parametrize(("token", "times"), [("a", 1), ("a", 2), ("stop", 0)])
def test_what_was_claimed_is_answered_before_an_executor_ends_unless_asked_twice(token, times):
    """The message may have been charged already."""
    answered = []

    def answer(token):
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGTERM)
        answered.append(token)

    with nullcontext() if times < 2 else pytest.raises(SystemExit):
        executor._serve(Tasks(token, "b"), answer)
    assert answered == [token] * (times < 2)


def test_an_executor_that_has_nothing_to_answer_ends_at_once(monkeypatch):
    monkeypatch.setattr(executor.time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        executor._serve(Tasks("", "a"), None)


def test_a_supernode_that_is_away_is_waited_for(monkeypatch):
    pauses, started = [], []
    monkeypatch.setattr(executor.time, "sleep", pauses.append)
    with pytest.raises(Killed):
        executor._serve(Tasks(None, None, "", "a"), started.append)
    assert started == ["a"]
    assert len(pauses) == 3
