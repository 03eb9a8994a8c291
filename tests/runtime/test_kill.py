"""A site's process killed at random moments: what left it is always in its ledger.

A server process is kept warm (imports, compiled kernels) and forks a child a trial. The child
answers one request and, once the reply is in its hands, announces its hash in a file: that stands
for sending it. The child is killed with SIGKILL after a random delay. Then the ledger is read, and
the request is made again.

A kill leaves what the process had written in the kernel's hands: this is no test of a power loss.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.client import DPFactClient
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.privacy.ledger import LEDGER, Ledger, data_tag
from dpfact_flower.privacy.patient import step_of
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
from dpfact_flower.site.store import SiteStore
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

RUNS = {
    # epsilon is small, so that many jobs have room; each round has its release and its row.
    "patient": {
        "solver": SolverSettings(rank=4, off=0.2),
        "privacy": PrivacySettings(
            epsilon=0.01, start_share=0.7, refine_rounds=1, bound=0.1, codes="6x8"
        ),
    },
    "paper": {
        "solver": SolverSettings(rank=4, solver="psgd", clip=1.0, eta=1e-3),
        "privacy": PrivacySettings(privacy="paper", epsilon=0.01),
    },
}
# A simulated site does not wait for the disk: it may be killed all the same.
RUNS["paper-simulated"] = RUNS["paper"]


NEAR = 1.09
"""Factor by which the estimate of a moment is changed when it was about right."""

# --- the process that is killed


def make_client(data: SiteData, mode: str, root: Path) -> DPFactClient:
    allowed, _, simulated = mode.partition("-")
    settings = SiteSettings(allow_privacy=allowed, max_epsilon=1e6, state_dir=str(root))
    return DPFactClient(data, settings, simulation=bool(simulated))


def fingerprint_of(arrays) -> tuple[str, int]:
    payload = b"".join(array.tobytes() for array in arrays)
    return hashlib.sha256(payload).hexdigest(), len(payload)


def answer_and_announce(client: DPFactClient, wire, place: Path) -> None:
    arrays, _, _ = client.fit(*wire)
    digest, size = fingerprint_of(arrays)
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, f"{digest} {size}\n".encode())
    os.fsync(handle)
    os.close(handle)


def read_request(path: str):
    with np.load(path) as arrays:
        config = json.loads(str(arrays["config"]))
        count = len(arrays.files) - 1
        return [arrays[f"array_{n}"] for n in range(count)], config


def save_request(path: Path, request: RoundRequest) -> None:
    arrays, config = request.to_wire()
    named = {f"array_{n}": array for n, array in enumerate(arrays)}
    np.savez(path, config=np.array(json.dumps(config)), **named)


def serve(site_file: str, mode: str, root: str) -> None:
    """For every line on stdin: fork a child that answers it, say its pid; on "wait", reap it."""
    client = make_client(SiteData.load(site_file), mode, Path(root))
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("warm"):
            answer_and_announce(client, read_request(order["request"]), Path(order["announce"]))
            print("warm", flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            try:
                answer_and_announce(client, read_request(order["request"]), Path(order["announce"]))
            finally:
                os._exit(0)
        print(pid, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        print(status, flush=True)


# --- the tests


@dataclass
class Trials:
    """Kills of one site's process, round after round, job after job."""

    data: SiteData
    mode: str
    folder: Path
    process: subprocess.Popen
    rng: random.Random
    outcomes: Counter = field(default_factory=Counter)
    kinds: Counter = field(default_factory=Counter)
    jobs: int = 0
    server: Coordinator | None = None
    charge_at: float = 0.0
    """Running estimate of when the charge is on the disk, in seconds after the fork."""
    stride: float = NEAR
    """By how much the estimate was last changed, as a factor."""
    was_charged: bool = False

    @property
    def root(self) -> Path:
        return self.folder / "state"

    @property
    def announced(self) -> Path:
        return self.folder / "announced.txt"

    def rows(self):
        site = self.root / self.data.name
        if not (site / LEDGER).exists():
            return ()
        with Ledger(site, create=False) as ledger:
            assert ledger.verify() == []
            return ledger.rows()

    def next_request(self) -> RoundRequest:
        # A last round of patient mode charges nothing, and leaves nothing to be torn.
        charged = 0 if self.server is None else self.server.rounds - (self.mode == "patient")
        if self.server is None or self.server.finished_rounds >= min(charged, 5):
            self.jobs += 1
            self.server = Coordinator(
                self.data.tensor.feature_shape, **RUNS[self.mode],
                run=RunSettings(job=f"job-{self.jobs}", rounds=5, sites=1, seed=self.jobs),
                vocabulary=joint_digest(self.data.vocabularies),
            )  # fmt: skip
        return self.server.request(self.server.finished_rounds + 1)

    def order(self, line: dict) -> str:
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def finish_round(self, request: RoundRequest, arrays) -> None:
        shapes = self.server.reply_shapes(request.round)
        reply = SiteReply.from_wire(arrays, {"site": self.data.name}, shapes)
        self.server.close_round(request.round, [reply], [], bytes_down=0, bytes_up=0, seconds=0.0)

    def asked(self, request: RoundRequest) -> dict:
        save_request(self.folder / "request.npz", request)
        return {"request": str(self.folder / "request.npz"), "announce": str(self.announced)}

    def warm_up(self) -> None:
        """A job in the server process, so that its children begin compiled; one timed in them."""
        seconds = []
        for warm in (True, False):
            for _ in range(5):
                request = self.next_request()
                if warm:
                    assert self.order({**self.asked(request), "warm": True}) == "warm"
                else:
                    seconds.append(self.seconds_to_answer(request))
                arrays, _, _ = make_client(self.data, self.mode, self.root).fit(*request.to_wire())
                self.finish_round(request, arrays)
        self.charge_at = 0.9 * sorted(seconds)[2]

    def seconds_to_answer(self, request: RoundRequest) -> float:
        """Let a child live; from its fork to its announcement."""
        said = len(self.announcements())
        self.order(self.asked(request))
        began = time.perf_counter()
        while len(self.announcements()) == said and time.perf_counter() < began + PATIENCE:
            time.sleep(0.001)
        seconds = time.perf_counter() - began
        assert self.order({"wait": True}) == "0"
        return seconds

    def delay(self) -> float:
        """Most moments lie close to the charge, others anywhere in the round and after it."""
        if self.rng.random() < 0.75:
            return self.charge_at * self.rng.uniform(0.9, 1.1)
        return self.charge_at * self.rng.uniform(0, 2)

    def kill_one(self) -> None:
        request, before = self.next_request(), self.rows()
        said = self.announcements()
        pid = int(self.order(self.asked(request)))
        time.sleep(self.delay())
        os.kill(pid, signal.SIGKILL)  # it may be done: it is not reaped yet, so it is still it
        status = int(self.order({"wait": True}))
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        self.check(request, before, self.announcements()[len(said) :])

    def announcements(self) -> list[str]:
        if not self.announced.exists():
            return []
        return self.announced.read_text().splitlines()

    def check(self, request: RoundRequest, before, left: list[str]) -> None:
        after = self.rows()
        assert after[: len(before)] == before
        charged = len(after) - len(before)
        assert charged in (0, 1)
        assert len(left) <= charged  # never less in the ledger than what left
        kept: tuple[str, int] | None = None
        if charged:
            row = after[-1]
            assert (row.job, row.round) == (request.job, request.round)
            assert row.request == request.digest
            kept = self.kept(request)
        if left:
            assert left == ["{} {}".format(*kept)]
        self.outcomes["sent" if left else "charged" if charged else "before"] += 1
        self.kinds[request.round] += 1
        self.learn(bool(charged))
        again, _, config = make_client(self.data, self.mode, self.root).fit(*request.to_wire())
        assert config == {"site": self.data.name}
        assert fingerprint_of(again) == self.kept(request)
        if charged:
            assert fingerprint_of(again) == kept
            assert self.rows() == after
        else:
            assert self.rows()[:-1] == before
        self.check_state(request)
        self.finish_round(request, again)

    def came_at_every_moment(self, count: int) -> bool:
        """Whether enough of `count` kills came before the charge, after it and after sending."""
        before, charged, sent = (self.outcomes[m] for m in ("before", "charged", "sent"))
        return min(before, charged + sent) >= count // 20 and min(charged, sent) >= count // 33

    def learn(self, charged: bool) -> None:
        """Learn where the charge lies, so that moments crowd around it.

        As long as the estimate lies on one side it strides on, faster and faster: the machine may
        have become many times busier, or quieter.
        """
        self.stride = min(self.stride**1.5, 4.0) if charged == self.was_charged else NEAR
        self.charge_at = max(self.charge_at * self.stride ** (-1 if charged else 1), 1e-4)
        self.was_charged = charged

    def kept(self, request: RoundRequest) -> tuple[str, int]:
        """Fingerprint of the message that the ledger's release makes."""
        with Ledger(self.root / self.data.name, create=False) as ledger:
            release = ledger.release_of(request.job, request.round)
        arrays, _ = SiteReply(self.data.name, release.arrays, step_of(release)).to_wire()
        return fingerprint_of(arrays)

    def check_state(self, request: RoundRequest) -> None:
        """Where a round leaves factors, those of the round that was answered are there."""
        tag = data_tag(self.root / self.data.name, self.data.tensor.fingerprint())
        store = SiteStore(self.root, self.data.name, request.job, tag)
        if self.mode != "patient":
            state = store.load(request.round)
            assert state is not None
            assert state.round == request.round
            assert all(np.isfinite(factor).all() for factor in state.factors)


@contextmanager
def site_process(data: SiteData, mode: str, folder: Path):
    """The warm process that forks the children to be killed."""
    data.save(folder / "site.npz")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                   "NUMBA_NUM_THREADS": "1"}  # fmt: skip
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder / "site.npz"), mode, str(folder / "state")],
            cwd=Path(__file__).parents[2], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        try:
            assert process.stdout.readline().strip() == "ready", (folder / "log.txt").read_text()
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def run_trials(data: SiteData, mode: str, folder: Path, count: int, seed: int) -> Trials:
    with site_process(data, mode, folder) as process:
        trials = Trials(data, mode, folder, process, random.Random(seed))
        trials.warm_up()
        while trials.outcomes.total() < count or not trials.came_at_every_moment(count):
            trials.kill_one()
            # Else the delays are not where they should be, and nothing is tested.
            assert trials.outcomes.total() < 20 * count, trials.outcomes
    print(mode, dict(trials.outcomes), f"charge at {1000 * trials.charge_at:.1f} ms")
    return trials


@pytest.mark.parametrize("mode", RUNS)
def test_a_killed_site_has_in_its_ledger_whatever_left_it(cohort, tmp_path, mode):
    run_trials(cohort.sites[0], mode, tmp_path, 20, seed=1)


@pytest.mark.slow
def test_two_hundred_kills(cohort, tmp_path):
    outcomes, kinds = Counter(), Counter()
    for mode in ("patient", "paper"):
        folder = tmp_path / mode
        folder.mkdir()
        trials = run_trials(cohort.sites[1], mode, folder, 100, seed=2)
        outcomes += trials.outcomes
        kinds += trials.kinds
    assert outcomes.total() >= 200
    assert min(outcomes[moment] for moment in ("before", "charged", "sent")) >= 5, outcomes
    assert min(kinds[number] for number in range(1, 6)) >= 20, kinds


if __name__ == "__main__":
    serve(*sys.argv[1:])
