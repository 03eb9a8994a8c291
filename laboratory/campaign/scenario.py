"""Carry out one run with faults, and check the conditions that must hold after any run."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import DPFactError
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.server.history import CHECKPOINT, Checkpoint
from dpfact_flower.server.status import run_status
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.lockout import ATTEMPT_LIMIT
from dpfact_flower.strategy import DPFact
from laboratory.campaign.network import FAULTS, Clock, Faults, Network, ServerKilled, on_this_clock

MOST_STARTS = 6
PRIVACY = {
    "patient": PrivacySettings(epsilon=4.0, refine_rounds=1, patients=95, codes="6x8"),
    "none": PrivacySettings(privacy="none"),
}


class Scenario(NamedTuple):
    """The random choices for one run: the kinds of faults, and the share of messages with a fault.

    The server is killed after `server` steps. For some seeds, it is killed again after a restart.
    """

    seed: int
    mode: str
    rate: float
    kinds: tuple[str, ...]
    server: int | None


def drawn(seed: int) -> Scenario:
    """Draw the scenario of a seed: one kind of fault, several, or only server faults."""
    rng = random.Random(seed)
    kinds = FAULTS if rng.random() < 0.4 else (rng.choice(FAULTS),)
    server = int(rng.triangular(1, 120, 5)) if rng.random() < 0.5 else None
    rate = 0.0 if server and rng.random() < 0.3 else rng.choice((0.1, 0.3, 0.6))
    return Scenario(seed, rng.choice(("patient", "patient", "none")), rate, kinds, server)


class Outcome(NamedTuple):
    """The outcome of a run. `end` is ``finished`` or an error code, which `why` may explain.

    `starts` is the number of times that the server was started, with or without faults. `unused`
    counts the charged releases that the finished run did not use.
    """

    end: str
    starts: int
    happened: list[str]
    problems: list[str]
    unused: int
    factors: tuple[bytes, ...]
    why: str = ""

    def __str__(self) -> str:
        again = "" if self.starts == 1 else ", gone on with"
        end = f"{self.end}: {self.why}" if self.why else self.end
        bad = f" PROBLEMS: {'; '.join(self.problems)}" if self.problems else ""
        return f"{'; '.join(self.happened) or 'no fault'}: {end}{again}; {self.unused} unused{bad}"


def carry_out(scenario: Scenario, cohort: Cohort, folder: Path) -> Outcome:
    """Run with faults, replacing each server that dies. Then run without faults to the end."""
    world = _World(scenario, cohort, folder)
    with on_this_clock(world.clock):
        end = "killed"
        while end == "killed" and world.starts < MOST_STARTS:
            end = world.start()
        world.faults.rate, world.faults.server = 0.0, None
        world.clock.now += 1e4  # all sites are back
        first = end
        for folder_ in world.sites():
            (folder_ / ".failed-attempts").unlink(missing_ok=True)  # as if a person had checked
        if end != "finished":
            end = world.start()
        problems = [] if end == "finished" else [f"without faults it ended as {end}"]
        problems += world.problems()
    assert world.run is not None
    factors = tuple(factor.tobytes() for factor in world.run.coordinator.factors)
    return Outcome(first, world.starts, world.faults.happened, problems, world.unused(), factors)


class _World:
    def __init__(self, scenario: Scenario, cohort: Cohort, folder: Path) -> None:
        self.scenario, self.cohort, self.folder = scenario, cohort, folder
        self.clock = Clock()
        rng = random.Random(scenario.seed + 1)
        self.faults = Faults(rng, scenario.rate, scenario.kinds, scenario.server)
        (folder / "cohort").mkdir(parents=True)
        cohort.save(folder / "cohort")
        noisy = scenario.mode != "none"
        nodes = [
            {
                "site": site.name, "data-path": str(folder / "cohort" / f"{site.name}.npz"),
                "state-dir": str(folder / "state" / site.name), "allow-privacy": scenario.mode,
                "max-epsilon": 4.1 if noisy else 0.0,
            }
            for site in cohort.sites
        ]  # fmt: skip
        self.network = Network(nodes, self.clock, self.faults)
        self.starts = 0
        self.run: DPFact | None = None

    def sites(self) -> list[Path]:
        return sorted(path.parent for path in (self.folder / "state").glob(f"*/*/{LEDGER}"))

    def start(self) -> str:
        """Run one process of the server until it ends or dies."""
        self.starts += 1
        out, faulty = self.folder / "run", self.starts > 1 or self.scenario.rate > 0
        try:
            with self._disk():
                self.run = DPFact(
                    self.cohort.sites[0].tensor.feature_shape,
                    solver=SolverSettings(rank=4, relative_l21=0.0),
                    privacy=PRIVACY[self.scenario.mode],
                    run=RunSettings(
                        rounds=4, sites=3, min_sites=2, job="campaign", round_timeout=600.0,
                        preflight="leave-out" if faulty else "stop",
                    ),
                    vocabulary=joint_digest(self.cohort.vocabularies),
                    run_dir=out,
                    resume=(out / CHECKPOINT).exists(),
                )  # fmt: skip
                self.run.start(self.network)
        except ServerKilled:
            if self.scenario.seed % 2 and self.starts < 3:
                self.faults.server = 30  # and once more
            return "killed"
        except DPFactError as error:
            return error.code
        except OSError as error:
            self.faults.happened.append(f"server: {error.strerror}")
            return "killed"  # this ended its process
        return "finished"

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Simulate the server's disk: writing a checkpoint may kill the server or fill the disk."""
        write, full = Checkpoint.write, self.scenario.seed % 3 == 0

        def step(*arguments: object, **named: object) -> None:
            try:
                self.faults.step("writing a checkpoint")
            except ServerKilled:
                if full:
                    raise OSError(28, "No space left on device") from None
                raise
            write(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoint, "write", step)
            yield

    def problems(self) -> Iterator[str]:
        """Yield the conditions that the run has violated. Call this after its end."""
        if self.network.late_charges:
            yield f"{self.network.late_charges} charges for a round that was over"
        assert self.run is not None
        coordinator = self.run.coordinator
        if not run_status(self.folder / "run").is_finished:
            yield "the folder says that it is not finished"
        if any(not np.isfinite(factor).all() for factor in coordinator.factors):
            yield "factors that are not finite"
        for folder in self.sites():
            yield from self._ledger_problems(folder)
        looks = [
            path.stat().st_size for path in (self.folder / "state").glob("*/*/.failed-attempts")
        ]
        if max(looks, default=0) > ATTEMPT_LIMIT:
            yield "more looks than there may be"

    def _ledger_problems(self, folder: Path) -> Iterator[str]:
        assert self.run is not None
        with Ledger(folder, create=False) as ledger:
            yield from (f"{folder.name}: {problem}" for problem in ledger.verify())
            rows, rho = ledger.rows(), sum(event.rho for event in ledger.events())
        numbers = [row.round for row in rows]
        if len(set(numbers)) < len(numbers):
            yield f"{folder.name}: a round was charged twice"
        plan = range(1, self.run.coordinator.rounds + 1)
        events = [event for n in plan for event in self.run.coordinator.rule.planned_events(n)]
        if rho > sum(event.rho for event in events) * (1 + 1e-12):
            yield f"{folder.name}: charged more than the plan"
        yield from self._cannot_be_had(folder, numbers)

    def _cannot_be_had(self, folder: Path, numbers: list[int]) -> Iterator[str]:
        """Repeat each request, and yield charged releases that are lost or are charged again."""
        if self.scenario.mode == "none":
            return  # nothing is charged, and only the last round's bytes are kept
        node = [site.name for site in self.cohort.sites].index(folder.name)
        for number in numbers:
            answers = [
                self.network.again(message)
                for message in self.network.asked
                if message.metadata.dst_node_id == self.network.get_node_ids()[node]
                and message.metadata.message_type == "train"
                and message.metadata.group_id == str(number)
            ]
            if not any(answers):
                yield f"{folder.name}: round {number} was charged, and cannot be had"
        with Ledger(folder, create=False) as ledger:
            if [row.round for row in ledger.rows()] != numbers:
                yield f"{folder.name}: asking again was charged"

    def unused(self) -> int:
        """Return the number of charged releases that no round of the finished run used."""
        assert self.run is not None
        used = {
            (site, record.round)
            for record in self.run.coordinator.records
            if record.updated
            for site in record.sites
        }
        count = 0
        for folder in self.sites():
            with Ledger(folder, create=False) as ledger:
                count += sum(
                    bool(row.events) and (folder.name, row.round) not in used
                    for row in ledger.rows()
                )
        return count
