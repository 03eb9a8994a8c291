"""Manage a run's rounds, quorum, checkpoints and history on the server, without using Flower."""

import logging
import math
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from dpfact_flower.data.vocabulary import Vocabulary, joint_digest
from dpfact_flower.errors import QuorumError, SettingsError, StateError, plural, shown
from dpfact_flower.machine.files import disk_errors
from dpfact_flower.privacy.patient.releases import PlannedRelease
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.server.history import CHECKPOINT, Checkpoint, Failure, RoundRecord, write_history
from dpfact_flower.server.rules import rule_for
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Array, Factors
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

_logger = logging.getLogger(__name__)
_Settings = TypeVar("_Settings", SolverSettings, PrivacySettings, RunSettings)
_MAY_CHANGE = ("sites", "min-sites", "round-timeout", "wait-timeout", "grace", "preflight")
"""Run settings that may change on resume."""
_PLANNED = ("start_share", "refine_rounds", "bound")
"""Privacy settings that patient mode plans if not set. A resumed run keeps their values."""


class CoordinatorOptions(TypedDict, total=False):
    """Options of a `Coordinator`, as documented in `dpfact_flower.DPFact`."""

    solver: SolverSettings | None
    privacy: PrivacySettings | None
    run: RunSettings | None
    vocabulary: str | Sequence[Vocabulary]
    run_dir: str | Path | None
    resume: bool
    durable: bool


class Coordinator:
    """The state of a run on the server, with methods that a Flower strategy calls in each round."""

    def __init__(
        self, feature_shape: Sequence[int], *, solver: SolverSettings | None = None,
        privacy: PrivacySettings | None = None, run: RunSettings | None = None,
        vocabulary: str | Sequence[Vocabulary] = "", run_dir: str | Path | None = None,
        resume: bool = False, durable: bool = True,
    ) -> None:  # fmt: skip
        self.feature_shape = [int(size) for size in feature_shape]
        if not self.feature_shape:
            raise SettingsError("feature_shape: need at least one feature mode")
        solver = _given(solver, SolverSettings)
        privacy = _given(privacy, PrivacySettings)
        self.run = _given(run, RunSettings)
        self.solver = privacy.resolved(solver)
        self._given_privacy = privacy
        self.run_dir = None if run_dir is None else Path(run_dir)
        if resume and self.run_dir is None:
            raise SettingsError("resume: needs run_dir, the folder with the run's checkpoint")
        found = None if self.run_dir is None else _checkpoint_in(self.run_dir, resume=resume)
        self._plan(self._as_begun(found.identity) if found else self.run.expected_sites)
        self.vocabulary = vocabulary if isinstance(vocabulary, str) else joint_digest(vocabulary)
        if not self.vocabulary and privacy.privacy == "patient":
            _logger.warning("vocabulary: not given, so sites with other code lists can take part "
                            "and spend budget; give DPFact the code lists")  # fmt: skip
        self.durable = durable
        self.records: list[RoundRecord] = []
        self._missed: list[RoundRecord] = []  # at most one: of the round that must be repeated
        self._asked = 0
        self._how = "with resume = true" if run_dir else "in this process (there is no run_dir)"
        self.resumed = False
        """Whether the run continues from a checkpoint, possibly one from before round 1."""
        if self.run_dir is not None:
            with disk_errors(self.run_dir):
                self.run_dir.mkdir(parents=True, exist_ok=True)
            if found:
                self._continue(found, self.run_dir)
        if not self.run.job:
            self.run = replace(self.run, job=f"job-{uuid.uuid4().hex[:12]}")

    def _plan(self, sites: int) -> None:
        """Plan the run for `sites` sites, even if `run.expected_sites` is another number."""
        self._planned_sites = sites
        run = replace(self.run, sites=sites, min_sites=min(self.run.min_sites, sites))
        self.rule = rule_for(self.feature_shape, self.solver, self._given_privacy, run)
        self.rule.check_sites(self.run.expected_sites)
        self.privacy = self.rule.privacy

    def resize(self, sites: int) -> None:
        """Plan the run again for `sites` sites. Raise a `QuorumError` if round 1 is over."""
        if self.records:
            raise QuorumError(
                f"{sites} sites are connected; secure sums need as many as at the start"
            )
        expected = self._given_privacy.secure_sites or self.run.sites
        _logger.warning("secure sums of %d sites; %d were expected", sites, expected)
        self.run = replace(self.run, sites=sites)
        self._given_privacy = replace(self._given_privacy, secure_sites=0)  # the plan uses `sites`
        self._plan(sites)

    @property
    def finished_rounds(self) -> int:
        """Number of finished rounds."""
        return self.records[-1].round if self.records else 0

    @property
    def asked_rounds(self) -> int:
        """The latest round for which the server may have sent any site a request."""
        return max(self._asked, self.finished_rounds)

    @property
    def _charged(self) -> dict[str, int]:
        """The charged sites of a round that must be repeated, with the number of the round."""
        return {site: number for missed in self._missed for site, number, _ in missed.answers}

    @property
    def factors(self) -> Factors:
        """Current global factors, one array per feature mode."""
        return self.rule.factors

    @property
    def rounds(self) -> int:
        """Number of rounds in the run."""
        return self.rule.rounds

    @property
    def secure(self) -> Sharing | None:
        """How the sites divide the noise of secure sums, or None if the run has no secure sums."""
        return self.rule.plan.facts.sharing if self.rule.plan else None

    def planned_release(self, round_number: int) -> PlannedRelease | None:
        """Return a round's planned release, or None if no release is planned."""
        return self.rule.plan.release_of(round_number) if self.rule.plan else None

    def request(self, round_number: int) -> RoundRequest:
        """Return the request for a round, which is the same for every site."""
        if round_number > self.rounds:  # sites have planned their budget for `rounds`
            raise SettingsError(
                f"rounds: the run has {self.rounds}, but Flower began round {round_number}; set "
                "Flower's num_rounds to the run's number of remaining rounds"
            )
        answers = [answer for record in self.records for answer in record.answers]
        before = sorted((number, site) for site, number, _ in answers if number < round_number)
        return RoundRequest(
            job=self.run.job,
            round=round_number,
            rounds=self.rounds,
            seed=self.run.seed,
            solver=self.privacy.sent(self.solver),
            privacy=self.privacy,
            vocabulary=self.vocabulary,
            anchors=self.rule.anchors(round_number),
            selection=self.rule.selection,
            rule=self.rule.name,
            usages=self.rule.usages(round_number),
            answered={**{site: number for number, site in before}, **self._charged},
        )

    def begin(self) -> None:
        """Prepare to send requests. Before round 1, write a checkpoint to resume the run from."""
        self._asked = self.finished_rounds + 1
        if not self.records:
            self.save()

    def seconds_for(self, round_number: int) -> float:
        """Return how many seconds a round waits, or infinity if it waits until its time limit.

        If `grace` is set, a round waits for `grace` plus the longest time that an earlier round
        took to reach its quorum. A round waits until its time limit if no earlier round reached
        its quorum, or if later rounds need the round's result.
        """
        slowest = max((record.quorum_seconds for record in self.records), default=0.0)
        if not self.run.grace or not slowest or self.rule.needs_quorum(round_number):
            return math.inf
        return slowest + self.run.grace

    def check_connected(self, sites: int, *, first: bool) -> None:
        """If `first`, refuse fewer sites than the quorum, or more than the rule allows."""
        run = self.run
        # Later rounds may begin below the quorum, because lost sites may return.
        if sites < run.min_sites and first:
            raise QuorumError(
                f"{sites} site(s) connected within {run.wait_timeout:g} s (wait-timeout); "
                f"the quorum (min-sites) is {run.min_sites}"
            )
        if sites < run.expected_sites:
            _logger.warning("%d of %d sites take part; continuing", sites, run.expected_sites)
        if first and sites > run.expected_sites:
            self.rule.check_sites(sites)

    def close_round(
        self,
        round_number: int,
        replies: Sequence[SiteReply],
        failures: Sequence[Failure],
        *,
        bytes_down: int = 0,
        bytes_up: int = 0,
        seconds: float = 0.0,
        quorum_seconds: float = 0.0,
        sums: Sequence[SiteReply] | None = None,
        charged: Collection[str] = (),
    ) -> RoundRecord:
        """Update the factors from the replies, record the round, and write the checkpoint.

        With secure sums, replies contain no arrays, and `sums` contains one total per group of
        sites (none if the sum failed). `charged` names all sites that spent budget on the sum,
        including sites that dropped out. If too few sites replied or the sum failed, the factors
        stay unchanged. If later rounds need the missing result, a `QuorumError` is raised, and the
        next record of the round also names the sites that are charged already.
        """
        unique, failed = _distinct(replies, failures)
        for failure in failed:
            _logger.warning("round %d: %s", round_number, failure)
        sites = tuple(reply.site for reply in unique)
        statistics = unique if sums is None else sums
        enough = len(unique) >= self.run.min_sites and bool(statistics)
        record = RoundRecord(
            round_number, sites, tuple(failed), enough,
            bytes_down + sum(missed.bytes_down for missed in self._missed),
            bytes_up + sum(missed.bytes_up for missed in self._missed),
            seconds, utc_now(), quorum_seconds if enough else 0.0,
            dropped=tuple(sorted({*charged, *self._charged}.difference(sites))),
        )  # fmt: skip
        if enough:
            if self.rule.planned_events(round_number):  # the server may die in the update
                self._missed = [replace(record, updated=False, quorum_seconds=0.0)]
                self.save()
            self._update(round_number, statistics)
        else:
            sum_failed = len(unique) >= self.run.min_sites
            self._check_may_miss(record, sum_failed=sum_failed)
        self.records.append(record)
        self._missed = []
        self.save()
        return record

    def _check_may_miss(self, record: RoundRecord, *, sum_failed: bool) -> None:
        """Keep the record and raise a `QuorumError` if later rounds need the missing result."""
        short = f"{len(record.sites)} usable replies, the quorum is {self.run.min_sites}"
        advice = "once the sites are back" + ("" if sum_failed else ", or with a lower min-sites")
        if sum_failed:
            short = f"no sum of the {plural(len(record.sites), 'site')} that answered"
        if not self.rule.needs_quorum(record.round):
            _logger.warning("round %d: %s: the global model is unchanged", record.round, short)
            return
        self._missed = [record]
        self.save()
        raise QuorumError(
            f"round {record.round}: {short}, and later rounds build on this one", record.failures,
            f"Nothing that was charged is lost: continue {self._how} {advice}",
        )  # fmt: skip

    def save(self) -> None:
        """Write the checkpoint and the history."""
        if self.run_dir is None:
            return
        identity = {**self._identity(), "sites": self._planned_sites}
        checkpoint = Checkpoint(identity, self.records, self._state(), self._missed)
        checkpoint.write(self.run_dir / CHECKPOINT, durable=self.durable)
        write_history(self.run_dir, [*self.records, *self._missed], durable=self.durable)

    def check_learned(self) -> None:
        """Raise an error if no round of the run met the quorum, or if no round made a model yet."""
        if not any(record.updated for record in self.records):
            last = self.records[-1].failures if self.records else ()
            problem = f"no round met the quorum of {self.run.min_sites} site(s)"
            advice = "These failures are from the last round" if last else ""
            raise QuorumError(problem, last, advice)
        if not self.rule.started:
            raise SettingsError(
                f"num_rounds: the first {self.finished_rounds} round(s) only count codes, so there "
                f"are no phenotypes yet; continue {self._how} and up to {self.rounds} rounds"
            )

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must not change when a run continues from a checkpoint."""
        return {
            **self.solver.to_config(),
            **self.privacy.to_config(),
            **{k: value for k, value in self.run.to_config().items() if k not in _MAY_CHANGE},
            "rule": self.rule.name,
            "rounds": self.rounds,
            "vocabulary": self.vocabulary,
            "shape": self.feature_shape,
        }

    def _as_begun(self, identity: Mapping[str, Any]) -> int:
        """Use the values that were planned when the run began, and return its number of sites."""
        given, default = self._given_privacy, PrivacySettings()
        began = PrivacySettings.from_config(identity)
        if given.secure_sums != began.secure_sums:  # `_continue` refuses the run
            return self.run.expected_sites
        open_ = [name for name in _PLANNED if getattr(given, name) == getattr(default, name)]
        planned = {name: getattr(began, name) for name in open_}
        if began.secure_sums:
            planned["secure_sites"] = began.secure_sites
            if (expected := given.secure_sites or self.run.sites) not in (0, began.secure_sites):
                text = "secure sums of %d sites, as when the run began; %d were expected"
                _logger.warning(text, began.secure_sites, expected)
            self.run = replace(self.run, sites=began.secure_sites)
        self._given_privacy = replace(given, **planned)
        return int(identity.get("sites", self.run.expected_sites))

    def _update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        self.rule.update(round_number, replies)

    def _state(self) -> dict[str, Array]:
        return self.rule.state()

    def _restore(self, arrays: Mapping[str, Array]) -> None:
        self.rule.restore(arrays)

    def _continue(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Continue a checkpoint's run. Refuse a run with other settings."""
        path, stored = folder / CHECKPOINT, checkpoint.identity
        self.run = replace(self.run, job=self.run.job or stored["job"])
        expected = self._identity()
        if differing := [key for key in expected if expected[key] != stored.get(key)]:
            values = ", ".join(f"{key} = {shown(stored.get(key))}" for key in differing)
            raise StateError(
                f"{path}: a checkpoint of another run, which differs in {', '.join(differing)}; "
                f"the checkpoint has {values}"
            )
        self.records, self._missed, self.resumed = checkpoint.records, checkpoint.missed, True
        self._asked = min(self.finished_rounds + 1, self.rounds)  # if the server died in a round
        self._restore(checkpoint.arrays)
        write_history(folder, [*self.records, *self._missed], durable=self.durable)
        _logger.info("resumed from %s after round %d", path, self.finished_rounds)


def _checkpoint_in(folder: Path, *, resume: bool) -> Checkpoint | None:
    """Return the checkpoint to resume from. If `resume` is false, refuse an unfinished run."""
    path = folder / CHECKPOINT
    with disk_errors(folder):
        exists = path.exists()
    if not exists:
        if resume:
            raise StateError(f"{path}: no checkpoint to resume from")
        return None
    checkpoint = Checkpoint.read(path)
    finished, rounds = len(checkpoint.records), checkpoint.identity["rounds"]
    if not resume and finished < rounds:
        raise StateError(
            f"{folder} holds an unfinished run (round {finished} of {rounds}): set resume = true "
            "to continue it, or choose another folder"
        )
    return checkpoint if resume else None


def _given(value: _Settings | None, kind: type[_Settings]) -> _Settings:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise SettingsError(f"DPFact: need {kind.__name__}(...), got {shown(value)}")
    return value


def _distinct(
    replies: Sequence[SiteReply], failures: Sequence[Failure]
) -> tuple[list[SiteReply], list[Failure]]:
    """Sort replies by site. Replies with the same site name are replaced with one failure."""
    count = Counter(reply.site for reply in replies)
    unique = sorted((r for r in replies if count[r.site] == 1), key=lambda reply: reply.site)
    doubles = [
        Failure(name, f"{n} sites have the name {name!r}; none of them is used")
        for name, n in sorted(count.items()) if n > 1
    ]  # fmt: skip
    return unique, [*failures, *doubles]


def utc_now() -> str:
    """Return the current UTC time in ISO format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
