"""How a run stands, from its folder: sites by name, what each was charged, and what for nothing.

The centre knows what it has seen. A site that was charged and then lost on the way is not among
those; each site's own ledger has the whole truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfact_flower.errors import DPFactError, StateError
from dpfact_flower.privacy import ReleaseEvent, account
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.server.checkpoint import CHECKPOINT, Checkpoint
from dpfact_flower.server.history import HISTORY, RoundRecord, read_history
from dpfact_flower.server.readiness import Readiness, read_readiness
from dpfact_flower.server.rules import rule_for
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings


@dataclass(frozen=True)
class SiteStatus:
    """What the centre knows of one site.

    Attributes
    ----------
    name : str
        Its own, or ``node N`` where none was heard.
    last_seen : str
        End of the latest round with a usable reply, UTC, in ISO format; empty if there is none.
    used : int
        Replies that were used.
    unused : int
        Good replies that were not, as the quorum was missed or they were too stale.
    failed : int
        Rounds in which it was asked and gave no usable reply.
    epsilon, epsilon_unused : float or None
        What its usable replies cost it, at the run's delta, and what those cost that were not used;
        None where no epsilon bounds them.
    reason : str
        Of its latest failure, or its fault in the preflight.
    """

    name: str
    last_seen: str = ""
    used: int = 0
    unused: int = 0
    failed: int = 0
    epsilon: float | None = 0.0
    epsilon_unused: float | None = 0.0
    reason: str = ""


@dataclass(frozen=True)
class RunStatus:
    """A run as its folder has it.

    Attributes
    ----------
    job : str
    privacy : str
    delta : float
        Of every epsilon here.
    finished, rounds : int
        Rounds that are finished, and that there are.
    last : str
        When the latest ended, UTC; empty before the first.
    missed : tuple of int
        Rounds that missed their quorum after sites had answered.
    sites : tuple of SiteStatus
        By name.
    """

    job: str
    privacy: str
    delta: float
    finished: int
    rounds: int
    last: str
    missed: tuple[int, ...]
    sites: tuple[SiteStatus, ...]

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are over."""
        return self.finished >= self.rounds


def run_status(folder: Path) -> RunStatus:
    """Read how a run stands.

    Raises
    ------
    StateError
        If no run was begun in the folder, or its checkpoint is damaged.
    DataError
        If its history is damaged.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        said = "; ".join(each.words for each in read_readiness(folder) if each.fault)
        why = f"; in the preflight: {said}" if said else ""
        raise StateError(f"{folder}: no run was begun here (no {CHECKPOINT}){why}")
    found = Checkpoint.read(path)
    records = read_history(folder) if (folder / HISTORY).exists() else found.records
    privacy = PrivacySettings.from_config(found.identity)
    costs = _Costs(found.identity, privacy)
    names = {
        name: _site(name, records, costs, read_readiness(folder))
        for name in _names(records, read_readiness(folder))
    }
    return RunStatus(
        found.job,
        privacy.privacy,
        privacy.delta,
        found.finished_rounds,
        found.rounds,
        records[-1].ended if records else "",
        tuple(record.round for record in records if record.sites and not record.updated),
        tuple(names[name] for name in sorted(names)),
    )


class _Costs:
    """What rounds of a run cost a site that answers them."""

    def __init__(self, identity: Mapping[str, Any], privacy: PrivacySettings) -> None:
        self._delta = privacy.delta
        self._unprotected = privacy.privacy == "none"
        self._events: dict[int, tuple[ReleaseEvent, ...]] = {}
        shape = [int(size) for size in identity["shape"]]
        solver = SolverSettings.from_config(identity)
        if privacy.privacy == "patient":
            plan = plan_patient(privacy, sizes=shape, rank=solver.rank, sites=1)
            modes = [f"mode {mode}" for mode, _ in enumerate(shape, start=1)]
            events = plan.events(modes, seeded=privacy.noise_seed >= 0)
            for planned, event in zip(plan.releases, events, strict=True):
                self._events[planned.round] = (*self._events.get(planned.round, ()), event)
            return
        try:
            run = RunSettings.from_config(identity)
            rule = rule_for(shape, solver, privacy, run)
            self._events = {n: rule.planned_events(n) for n in range(1, rule.rounds + 1)}
        except DPFactError:  # a rule that only its own process has registered
            self._unprotected = True

    def epsilon(self, rounds: Sequence[int]) -> float | None:
        """Epsilon of several rounds together; None where nothing bounds it."""
        events = [event for number in rounds for event in self._events.get(number, ())]
        if self._unprotected:
            return None if rounds else 0.0
        return account(events, self._delta).headline.epsilon if events else 0.0


def _names(records: Sequence[RoundRecord], ready: Sequence[Readiness]) -> set[str]:
    heard = {name for record in records for name in record.sites}
    failed = {_name(failure.who) for record in records for failure in record.failures}
    asked = {each.site or f"node {each.node}" for each in ready}
    return heard | failed | asked


def _name(who: str) -> str:
    """The site's name in ``north (node 12)``; ``node 12`` where it has none."""
    return who.partition(" (node ")[0]


def _site(
    name: str, records: Sequence[RoundRecord], costs: _Costs, ready: Sequence[Readiness]
) -> SiteStatus:
    answered = [record for record in records if name in record.sites]
    replies = [
        (number, used)
        for record in records
        for site, number, used in record.answers
        if site == name
    ]
    unused = [number for number, used in replies if not used]
    failures = [
        failure for record in records for failure in record.failures if _name(failure.who) == name
    ]
    faults = [each.fault for each in ready if name in (each.site, f"node {each.node}")]
    return SiteStatus(
        name,
        answered[-1].ended if answered else "",
        len(replies) - len(unused),
        len(unused),
        len(failures),
        costs.epsilon([number for number, _ in replies]),
        costs.epsilon(unused),
        failures[-1].reason if failures else next(filter(None, faults), ""),
    )
