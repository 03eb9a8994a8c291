"""A site and its server in random sequences of requests, repeats, kills, restarts and changes.

hypothesis draws the order. In every order, the ledger is intact, no round is charged twice or for
more than the plan, and sent releases are resent bit for bit.
"""

import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dpfact_flower.client_app import DPFactClient, RoundRefusedError
from dpfact_flower.errors import code_in
from dpfact_flower.privacy.ledger import LEDGER, LedgerRow
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.wire.protocol import RoundRequest
from tests.bits import assert_bits
from tests.conftest import make_cohort
from tests.crash import Killed, failing_at, killed
from tests.ledgers import rows_in
from tests.site.federation import ask, close, make_client

SOLVER = SolverSettings(rank=3, relative_l21=0.2)
PRIVACY = {
    "patient": PrivacySettings(epsilon=0.1, start_share=0.7, refine_rounds=1, codes="6x8"),
    "none": PrivacySettings(privacy="none"),
}
COHORT = make_cohort()
DATA, OTHERS = COHORT.sites[0], replace(COHORT.sites[1], name=COHORT.sites[0].name)


class LifeOfASite(RuleBasedStateMachine):
    """A model of the site: the sent releases, by job and round."""

    @initialize(mode=st.sampled_from(sorted(PRIVACY)))
    def begin(self, mode: str) -> None:
        self.mode, self.jobs = mode, 0
        self.folder = Path(tempfile.mkdtemp(prefix="dpfact-life-"))
        self.sent: dict[tuple[str, int], bytes] = {}
        self.copy: Path | None = None
        self.restart_site()
        self.new_job()

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    @property
    def site(self) -> Path:
        return self.folder / "state" / DATA.name

    def client(self, data) -> DPFactClient:
        epsilon = 1e3 if self.mode == "patient" else 0.0
        return make_client(data, self.folder, allow_privacy=self.mode, max_epsilon=epsilon)

    def coordinator(self, *, resume: bool) -> Coordinator:
        return Coordinator(
            DATA.tensor.feature_shape, solver=SOLVER, privacy=PRIVACY[self.mode],
            run=RunSettings(job=f"job-{self.jobs}", rounds=4, sites=1, seed=self.jobs),
            vocabulary=DATA.vocabularies, durable=False,
            run_dir=self.folder / f"run-{self.jobs}", resume=resume,
        )  # fmt: skip

    def request(self) -> RoundRequest:
        return self.server.request(self.server.finished_rounds + 1)

    def noted(self) -> int:
        """Return the number of rows in the head file, which a death before the reply may spare."""
        head = self.site / f"{LEDGER}-head"
        return int(head.read_text().partition(":")[0]) if head.exists() else 0

    def rows(self) -> tuple[LedgerRow, ...]:
        return rows_in(self.site)

    def sends(self, request: RoundRequest) -> tuple[list, dict]:
        """The site's answer, which is what it sent before, if it has."""
        arrays, config = ask(self.asked, request)
        sent = b"".join(array.tobytes() for array in arrays)
        assert self.sent.setdefault((request.job, request.round), sent) == sent
        return arrays, config

    @rule()
    def new_job(self) -> None:
        """Let the server begin another run."""
        self.jobs += 1
        self.server = self.coordinator(resume=False)

    @rule()
    def restart_site(self) -> None:
        self.asked = self.client(DATA)

    @precondition(lambda self: self.server.finished_rounds)
    @rule()
    def restart_server(self) -> None:
        """Restart the server from its checkpoint."""
        before = self.server
        self.server = self.coordinator(resume=True)
        assert self.server.finished_rounds == before.finished_rounds
        assert_bits(self.server.factors, before.factors)

    @precondition(lambda self: self.server.finished_rounds < self.server.rounds)
    @rule()
    def ask(self) -> None:
        """Answer the next round, and use the answer."""
        request = self.request()
        close(self.server, request.round, [self.sends(request)])

    @precondition(lambda self: self.server.finished_rounds < self.server.rounds)
    @rule(step=st.integers(0, 60), again=st.booleans())
    def die_while_answering(self, step: int, again: bool) -> None:
        """Kill the site at any call that touches the disk, and restart it."""
        before, request = len(self.rows()), self.request()
        with suppress(Killed), failing_at(step, killed):
            self.sends(request)
        self.restart_site()
        assert len(self.rows()) - before in (0, 1)
        if again:
            self.ask()

    @precondition(lambda self: self.server.finished_rounds)
    @rule()
    def change_an_answered_round(self) -> None:
        """Check that an answered round cannot be requested with changes."""
        before = self.rows()
        request = self.server.request(self.server.finished_rounds)
        changed = replace(request, seed=request.seed + 1)
        with pytest.raises(RoundRefusedError):
            self.asked.fit(*changed.to_wire())
        assert self.rows() == before

    @precondition(lambda self: 0 < self.server.finished_rounds < self.server.rounds - 1)
    @rule()
    def exchange_the_data(self) -> None:
        """Check that a job does not continue with other patients, and is then closed."""
        before, request = self.rows(), self.request()
        if (request.job, request.round) in {(row.job, row.round) for row in before}:
            return  # it was charged before a kill, and its stored bytes are sent
        with pytest.raises(RoundRefusedError):
            self.client(OTHERS).fit(*request.to_wire())
        assert self.rows() == before
        self.new_job()

    @precondition(lambda self: self.copy is None and (self.site / LEDGER).exists())
    @rule()
    def copy_the_ledger(self) -> None:
        self.copy, self.rows_copied = self.folder / "copy", len(self.rows())
        shutil.copy(self.site / LEDGER, self.copy)

    @precondition(lambda self: self.copy and self.noted() > self.rows_copied)
    @rule()
    def set_the_ledger_back(self) -> None:
        """Check that a site with an old copy of its ledger answers no request."""
        newest = (self.site / LEDGER).read_bytes()
        shutil.copy(self.copy, self.site / LEDGER)
        if self.server.finished_rounds < self.server.rounds:
            with pytest.raises(RoundRefusedError) as refusal:
                self.client(DATA).fit(*self.request().to_wire())
            assert code_in(str(refusal.value)) == "state"
        (self.site / LEDGER).write_bytes(newest)
        for note in self.site.rglob("*LACKS*"):
            note.unlink()  # as if a person had checked
        self.copy = None
        self.restart_site()

    @invariant()
    def every_round_is_charged_once_and_as_planned(self) -> None:
        rows = self.rows() if hasattr(self, "site") and hasattr(self, "folder") else ()
        assert len({(row.job, row.round) for row in rows}) == len(rows)
        for row in rows:
            planned = self.server.rule.planned_events(row.round)
            assert [event.rho for event in row.events] == [event.rho for event in planned]
        if self.mode == "patient":
            charged = {(row.job, row.round) for row in rows}
            last = self.server.rounds  # releases nothing
            assert {key for key in self.sent if key[1] != last} <= charged


LifeOfASite.TestCase.settings = settings(
    max_examples=settings().max_examples // 10,
    stateful_step_count=15,
    suppress_health_check=[*HealthCheck],
)
TestLifeOfASite = pytest.mark.slow(LifeOfASite.TestCase)
