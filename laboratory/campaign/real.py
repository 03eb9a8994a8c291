"""Run real processes that are killed, stopped or ended during the run, and check the outcome."""

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DPFactError
from dpfact_flower.evaluation.run_folder import read_model
from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow
from dpfact_flower.runtime.serve import federate_config
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import CHECKPOINT, HISTORY, Checkpoint, read_history
from dpfact_flower.server.status import run_status
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.lockout import ATTEMPT_LIMIT
from dpfact_flower.site.store import SiteStore
from laboratory.campaign.deployed import Deployment, submitted
from laboratory.campaign.scenario import Outcome
from tests.patience import PATIENCE

TARGETS = {
    "ServerApp": ("centre", "flwr-serverapp"),
    "SuperLink": ("centre", ""),
    "the centre's SuperExec": ("centre", "flower-superexec"),
    "a SuperNode": ("node", ""),
    "a hospital's executor": ("site", ""),
    "a hospital's ClientApp": ("site", "dpfact_flower.runtime.worker"),
}
"""Possible targets: a unit, and words in a process's command line (none for the unit's own)."""
SIGNALS = {"killed": signal.SIGKILL, "ended": signal.SIGTERM, "stopped": signal.SIGSTOP}
STOPS = (5.0, 40.0, 100.0)
"""Seconds for which a process is stopped: too few for Flower to notice, about enough, and more."""
ROUND_TIMEOUT, WAIT_TIMEOUT = 150.0, 120.0
SETTINGS: dict[str, dict[str, object]] = {
    "patient": {"privacy": "patient", "epsilon": 4.0, "delta": 1e-5, "refine-rounds": 0,
                "patients": 95, "codes": "6x8", "rank": 4, "relative-l21": 0.0},
    "none": {"privacy": "none", "rounds": 3, "rank": 4, "tau": 2},
}  # fmt: skip
SEED = 5
_CLOCK_SECONDS = 2.0
"""Tolerance for times, which are in whole seconds and may precede the write to disk."""


@dataclass
class Blow:
    """A signal to a process of a hospital or the centre (`TARGETS`, `SIGNALS`).

    The signal is due `delay` seconds after the ledgers together hold `after` answers. If the
    process does not exist then, the signal waits for it. A stopped process resumes after a few
    seconds.
    """

    target: str
    way: str
    hospital: int
    after: int
    delay: float
    seconds: float
    due: float | None = None
    over: float | None = None
    pid: int = 0

    @property
    def words(self) -> str:
        """Return the text for the table."""
        return f"{self.target} {self.way}" + (
            f" for {self.seconds:g} s" if self.way == "stopped" else ""
        )


class RealScenario(NamedTuple):
    """The random choices for one run."""

    seed: int
    mode: str
    blows: tuple[Blow, ...]


def drawn_real(seed: int) -> RealScenario:
    """Draw the scenario of a seed. Consecutive seeds cover every target and signal."""
    rng = random.Random(f"real {seed}")
    mode = rng.choice(("patient", "patient", "none"))
    kinds = [(target, way) for target in TARGETS for way in SIGNALS]
    blows = []
    for number in range(rng.choice((1, 1, 2))):
        target, way = kinds[(seed + 7 * number) % len(kinds)]
        blows.append(
            Blow(target, way, rng.randrange(3), rng.randrange(6), rng.uniform(0, 8),
                 rng.choice(STOPS))
        )  # fmt: skip
    return RealScenario(seed, mode, tuple(blows))


@dataclass
class RealRun:
    """One run of a scenario, and checks of the outcome."""

    scenario: RealScenario
    made: Deployment
    folder: Path
    happened: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = f"real-{self.scenario.seed}"
        self._waiting = list(self.scenario.blows)
        self._began = time.monotonic()

    @property
    def out(self) -> Path:
        return self.folder / self.job

    @cached_property
    def coordinator(self) -> Coordinator:
        """Return a coordinator with the run's plan and costs."""
        config = {**SETTINGS[self.scenario.mode], "sites": 3, "min-sites": 2, "job": self.job}
        return Coordinator(
            [len(Vocabulary.load(path).codes) for path in self.made.vocabulary.split(",")],
            solver=SolverSettings.from_config(config),
            privacy=PrivacySettings.from_config(config),
            run=RunSettings.from_config(config),
        )

    def start(self, *, faults: bool) -> int | None:
        """Submit or resume the run. Return `dpfact submit`'s exit code, or None if it hangs."""
        rounds = self.coordinator.rounds
        # With faults, a round must end early. Without them, a busy machine may take longer.
        wait, each = (WAIT_TIMEOUT, ROUND_TIMEOUT) if faults else (PATIENCE, PATIENCE)
        # The time to wait for sites, the rounds with their repeated requests, Flower's minutes to
        # notice lost processes, and five minutes for a SuperLink that does not report the run.
        bound = wait + each + rounds * (1.25 * each + 10) + 180 + 300
        settings = {
            **SETTINGS[self.scenario.mode], "seed": SEED, "sites": 3, "min-sites": 2,
            "round-timeout": each, "wait-timeout": wait, "job": self.job,
            "preflight": "leave-out", "resume": str((self.out / CHECKPOINT).exists()).lower(),
        }  # fmt: skip
        self._began = time.monotonic()
        code, self.said = submitted(
            self.made, self.out, settings, bound, self._strike if faults else _nothing
        )
        for blow in self.scenario.blows:
            self._continued(blow, at_once=True)
        return code

    # --- Signals

    def _strike(self) -> None:
        now = time.monotonic()
        for blow in self._waiting[:]:
            if blow.due is None and self._answers() >= blow.after:
                blow.due = now + blow.delay
            if blow.due is None or now < blow.due:
                continue
            pid = self._process(blow)
            if pid is None:
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, SIGNALS[blow.way])
                blow.pid, blow.over = pid, now + blow.seconds
                what = f"{blow.words} after {self._answers()} answers"
                self.happened.append(what)
                print(f"  {now - self._began:.0f} s: {what}", flush=True)
                self._waiting.remove(blow)
        for blow in self.scenario.blows:
            self._continued(blow)

    def _continued(self, blow: Blow, *, at_once: bool = False) -> None:
        if blow.way != "stopped" or not blow.pid or blow.over is None:
            return
        if at_once or time.monotonic() >= blow.over:
            with suppress(ProcessLookupError):
                os.kill(blow.pid, signal.SIGCONT)
            blow.over = None

    def _process(self, blow: Blow) -> int | None:
        unit, words = TARGETS[blow.target]
        name = unit if unit == "centre" else f"{unit} site-{blow.hospital + 1}"
        return self.made.find(name, words) if words else self.made.services[name].pid

    def _answers(self) -> int:
        return sum(len(self._rows(folder)) for folder in self.states())

    # --- Conditions that must hold

    def states(self) -> list[Path]:
        """Return the hospitals' state folders for this mode, if they have a ledger."""
        folders = (self.made.state(each, self.scenario.mode) for each in self.made.hospitals)
        return [folder for folder in folders if (folder / LEDGER).exists()]

    def _rows(self, folder: Path) -> list[LedgerRow]:
        with Ledger(folder, create=False) as ledger:
            return [row for row in ledger.rows() if row.job == self.job]

    def problems(self) -> Iterator[str]:
        """Yield the conditions that the run has violated. Call this after its end."""
        if not run_status(self.out).is_finished:
            yield "the folder says that it is not finished"
        try:
            Checkpoint.read(self.out / CHECKPOINT)
            if any(not np.isfinite(factor).all() for factor in read_model(self.out)[0]):
                yield "factors that are not finite"
        except DPFactError as error:
            yield f"{error.code}: {error}"
        for folder in self.states():
            for problem in self._ledger_problems(folder):
                yield f"{folder.name}: {problem}"
        for each in self.made.hospitals:
            if self.made.find(f"site {each.name}", "dpfact_flower.runtime.worker"):
                yield f"{each.name}: a process still works on something"
        if self.scenario.mode == "none":
            yield from self._same_bits()

    def _ledger_problems(self, folder: Path) -> Iterator[str]:
        rows = self._rows(folder)
        with Ledger(folder, create=False) as ledger:
            yield from ledger.verify()
            for row in rows:
                if row.events:
                    try:
                        ledger.release_of(self.job, row.round)
                    except DPFactError as error:
                        yield f"round {row.round} was charged, and cannot be had: {error}"
        last = rows[-1] if rows else None
        if len({row.round for row in rows}) < len(rows):
            yield "a round was charged twice"
        rho = sum(event.rho for row in rows for event in row.events)
        plan = range(1, self.coordinator.rounds + 1)
        events = [event for n in plan for event in self.coordinator.rule.planned_events(n)]
        if rho > sum(event.rho for event in events) * (1 + 1e-12):
            yield "charged more than the plan"
        yield from self._late(rows)
        looks = folder / ".failed-attempts"
        if looks.exists() and looks.stat().st_size > ATTEMPT_LIMIT:
            yield "more looks than there may be"
        if last is not None and self.scenario.mode == "none":
            store = SiteStore(folder, self.job, last.fingerprint)
            if last.round > 1 and store.load(last.round) is None:
                yield f"round {last.round} was answered, and left no state"

    def _late(self, rows: list[LedgerRow]) -> Iterator[str]:
        """Yield the charges that were made after their round had ended."""
        ended = {record.round: record.ended for record in read_history(self.out)}
        for row in rows:
            if row.events and row.round in ended:
                late = _epoch(row.recorded) - _epoch(ended[row.round])
                if late > _CLOCK_SECONDS:
                    yield f"round {row.round} was charged {late:.0f} s after its end"

    def _same_bits(self) -> Iterator[str]:
        """Check that, if no site missed a round, the model equals that of a faultless run."""
        if any(len(record.sites) < 3 for record in read_history(self.out)):
            return
        expected = self.folder / "expected"
        if not expected.exists():
            own = {**SETTINGS["none"], "seed": SEED, "data": str(self.made.folder / "cohort")}
            federate_config({**own, "out": str(expected)})
        pairs = zip(read_model(self.out)[0], read_model(expected)[0], strict=True)
        if any(got.tobytes() != want.tobytes() for got, want in pairs):
            yield "another model than without faults"

    def unused(self) -> int:
        """Return the number of charged releases that no round of the finished run used."""
        records = read_history(self.out)
        used = {(site, each.round) for each in records if each.updated for site in each.sites}
        return sum(
            bool(row.events) and (folder.name, row.round) not in used
            for folder in self.states()
            for row in self._rows(folder)
        )


def carry_out_real(scenario: RealScenario, made: Deployment, folder: Path) -> Outcome:
    """Carry out a run with its signals. If the run does not finish, resume it without signals."""
    made.allow(scenario.mode)
    made.await_all()
    run, starts = RealRun(scenario, made, folder), 1
    code = run.start(faults=True)
    end, problems = ENDS.get(code, f"exit code {code}"), []
    if code is None:
        problems.append("it did not end in time")
    why = "" if code == 0 else _why(run.said)
    if code not in (None, 0) and not why:
        problems.append(f"exit code {code} without a reason")
    for each in run.states():
        (each / ".failed-attempts").unlink(missing_ok=True)  # as if a person had checked
    if code != 0:
        if any(blow.target in ("SuperLink", "a SuperNode") for blow in scenario.blows):
            time.sleep(60)  # until Flower has noticed that processes are lost
        made.await_all()
        starts, code = 2, run.start(faults=False)
        if code != 0:
            problems.append(f"without faults it ended as {ENDS.get(code, code)}")
    unused = 0
    if (run.out / HISTORY).exists():
        problems += run.problems()
        unused = run.unused()
    return Outcome(end, starts, run.happened, problems, unused, (), why)


ENDS = {0: "finished", 1: "failed", 2: "not started", 4: "unknown", None: "no end"}


def _why(said: str) -> str:
    """Return the last reason that `dpfact submit` gives: its own error, or Flower's message."""
    found = re.findall(r'error \([\w-]+\): .*|"details": "(?:[^"\\]|\\.)+"', said)
    return re.sub(r'^"details": ', "", found[-1]).strip('"') if found else ""


def _nothing() -> None:
    pass


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
