"""Read a run's finished rounds and its sites' charges from the run's folder.

The server counts only the charges for usable replies. If a reply is lost or unusable (because two
sites have one name, or the server died in the round), only the site's exact ledger has the charge.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfact_flower.errors import DPFactError, StateError
from dpfact_flower.privacy import account
from dpfact_flower.server.history import CHECKPOINT, Checkpoint, RoundRecord
from dpfact_flower.server.readiness import Readiness, called, read_readiness
from dpfact_flower.server.rules import rule_for
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings

Cost = Callable[[Sequence[int]], float | None]
"""A function that returns the total epsilon of some rounds, or None if no epsilon applies."""


@dataclass(frozen=True)
class SiteStatus:
    """The status of one site. If the site's name is unknown, `name` is ``node N``.

    `last_seen` gives the end time of the latest round with a usable reply. `unused` counts charged
    replies that did not change the model, and `failed` counts rounds without a usable reply.
    `epsilon` is None if infinite or unknown. `reason` has up to 3 faults or failures.
    """

    name: str
    last_seen: str
    used: int
    unused: int
    failed: int
    epsilon: float | None
    epsilon_unused: float | None
    reason: str


@dataclass(frozen=True)
class RunStatus:
    """The status of a run. `missed` lists rounds that had answers but left the model unchanged."""

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
        """Whether all rounds are finished."""
        return self.finished >= self.rounds


def run_status(folder: Path) -> RunStatus:
    """Read a run's status. Raise a `StateError` if the checkpoint is missing or damaged."""
    path, ready = folder / CHECKPOINT, read_readiness(folder)
    if not path.exists():
        faults = "; ".join(site.message for site in ready if site.fault)
        why = f"; in the preflight: {faults}" if faults else ""
        raise StateError(f"{folder}: no run was begun here (no {CHECKPOINT}){why}")
    checkpoint = Checkpoint.read(path)
    identity = checkpoint.identity
    records = [*checkpoint.records, *checkpoint.missed]
    privacy, cost = PrivacySettings.from_config(identity), _cost(identity)
    names = {_name(called(site.node, site.site)) for site in ready}
    for record in records:
        names |= {*record.sites, *record.dropped, *(_name(each.who) for each in record.failures)}
    return RunStatus(
        identity["job"], privacy.privacy, privacy.delta, len(checkpoint.records),
        identity["rounds"], records[-1].ended if records else "",
        tuple(record.round for record in records if record.sites and not record.updated),
        tuple(_site(name, records, cost, ready) for name in sorted(names)),
    )  # fmt: skip


def _cost(identity: Mapping[str, Any]) -> Cost:
    privacy, solver = PrivacySettings.from_config(identity), SolverSettings.from_config(identity)
    run, rule = RunSettings.from_config(identity), None
    with suppress(DPFactError):  # the rule may not be registered in this process
        rule = rule_for(identity["shape"], solver, privacy, run)

    def epsilon(rounds: Sequence[int]) -> float | None:
        if rounds and (rule is None or privacy.privacy == "none"):
            return None
        spent = [event for n in rounds if rule for event in rule.planned_events(n)]
        return account(spent, privacy.delta).headline.epsilon if spent else 0.0

    return epsilon


def _name(label: str) -> str:
    """Remove the node's number from a label such as ``north (node 12)``."""
    return label.partition(" (node ")[0]


def _site(
    name: str, records: Sequence[RoundRecord], cost: Cost, ready: Sequence[Readiness]
) -> SiteStatus:
    round_ends = [record.ended for record in records if name in record.sites]
    answers = [(n, used) for r in records for site, n, used in r.answers if site == name]
    unused = [number for number, used in answers if not used]
    reasons = [f.reason for record in records for f in record.failures if _name(f.who) == name]
    faults = [e.fault for e in ready if e.fault and name in (e.site, f"node {e.node}")]
    return SiteStatus(
        name, round_ends[-1] if round_ends else "", len(answers) - len(unused), len(unused),
        len(reasons), cost([number for number, _ in answers]), cost(unused),
        "; also ".join([*dict.fromkeys([*faults[:1], *reasons])][-3:]),
    )  # fmt: skip
