"""A site's process is killed at work, and its output is always in its ledger.

A child answers one request and dies at a chosen step: at each call that touches the disk, and at
each statement of the ledger. Then the ledger is read, and the request is repeated. After a kill,
the kernel still writes the data, so this is not a test of a power loss.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.client_app import DPFactClient
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.privacy.patient import step_of
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from tests.crash import answered_in_a_child
from tests.ledgers import rows_in
from tests.site.federation import ask, close, make_client, make_server, store_of

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
]

RUNS = {
    # epsilon is small, so that many jobs fit the budget. Each round has its release and its row.
    "patient": {
        "solver": SolverSettings(rank=4, relative_l21=0.2),
        "privacy": PrivacySettings(
            epsilon=0.01, start_share=0.7, refine_rounds=1, bound=0.1, codes="6x8"
        ),
    },
    "paper": {
        "solver": SolverSettings(rank=4, solver="psgd", clip=1.0, eta=1e-3),
        "privacy": PrivacySettings(privacy="paper", epsilon=0.01),
    },
}


def digest(arrays) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@dataclass
class Trials:
    """Kills of one site's process in successive rounds and jobs."""

    data: SiteData
    mode: str
    folder: Path
    outcomes: Counter = field(default_factory=Counter)

    @property
    def site(self) -> Path:
        return self.folder / "state" / self.data.name

    def client(self) -> DPFactClient:
        allowed = {"allow_privacy": self.mode, "max_epsilon": 1e6}
        return make_client(self.data, self.folder, **allowed)

    def rounds(self, job: int) -> Iterator[RoundRequest]:
        """Yield a job's charged rounds. Each ends with the site's answer."""
        run = {"job": f"job-{job}", "rounds": 4, "seed": job}
        server = make_server(self.data, **RUNS[self.mode], **run)
        for number in range(1, server.rounds + 1):
            if not server.rule.planned_events(number):
                return
            request = server.request(number)
            yield request
            answer = ask(self.client(), request)
            assert answer[1] == {"site": self.data.name}
            close(server, number, [answer])

    def kill(self, request: RoundRequest, step: int) -> bool:
        """Let a child answer and die at a step. Return whether it survived."""
        before, wire = rows_in(self.site), request.to_wire()
        client = self.client()

        def answer() -> bytes:
            arrays, _, _ = client.fit(*wire)
            return b"".join(array.tobytes() for array in arrays)

        lived, left = answered_in_a_child(answer, step)
        after = rows_in(self.site)
        assert after[: len(before)] == before
        charged = len(after) - len(before)
        assert charged in (0, 1)
        assert charged or not left  # every output is in the ledger
        if charged:
            assert (after[-1].job, after[-1].round) == (request.job, request.round)
            assert after[-1].request == request.digest
            kept = self.kept(request)
            assert left in ("", kept)
        again, _, _ = self.client().fit(*wire)
        assert digest(again) == self.kept(request)
        if charged:
            assert digest(again) == kept
            assert rows_in(self.site) == after
        else:
            assert rows_in(self.site)[:-1] == before
        self.check_state(request)
        self.outcomes["sent" if left else "charged" if charged else "before"] += 1
        return lived

    def kept(self, request: RoundRequest) -> str:
        """Return the message made from the ledger's release."""
        with Ledger(self.site, create=False) as ledger:
            release = ledger.release_of(request.job, request.round)
        arrays, _ = SiteReply(self.data.name, release.arrays, step_of(release)).to_wire()
        return digest(arrays)

    def check_state(self, request: RoundRequest) -> None:
        """If a round stores factors, check that those of the answered round exist."""
        if self.mode != "patient":
            state = store_of(self.data, self.folder, request.job).load(request.round)
            assert state.round == request.round
            assert all(np.isfinite(factor).all() for factor in state.factors)


@pytest.mark.parametrize("mode", RUNS)
def test_a_site_killed_at_any_step_has_in_its_ledger_whatever_left_it(cohort, tmp_path, mode):
    trials = Trials(cohort.sites[0], mode, tmp_path)
    for step in count(0, 4):
        # Successive rounds die at successive steps. The last job's rounds survive.
        lived = [trials.kill(each, step + each.round % 4) for each in trials.rounds(step)]
        if all(lived):
            break
    before, charged, sent = (trials.outcomes[kind] for kind in ("before", "charged", "sent"))
    assert before > 12
    assert charged > 3
    assert sent >= 3
