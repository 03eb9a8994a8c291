"""The server's part of a run, without Flower: global factors, quorum, checkpoints, history.

Both strategies, `dpfact_flower.DPFact` and `dpfact_flower.legacy.DPFact`, are adapters around one
`Coordinator`: they carry messages, it decides.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.data.vocabulary import check_name
from dpfact_flower.elastic import elastic_average, elastic_step, initial_factors
from dpfact_flower.errors import DataError, QuorumError, SettingsError, StateError
from dpfact_flower.files import replacing
from dpfact_flower.protocol import RoundRequest, SiteReply, checked_factors
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Factors, load_npz

_logger = logging.getLogger(__name__)
_MAX_REASON = 300
CHECKPOINT = "checkpoint.npz"
HISTORY = "history.jsonl"


@dataclass(frozen=True)
class Failure:
    """A site that was asked and did not give a usable reply."""

    who: str
    reason: str

    def __post_init__(self) -> None:
        # A stranger may have written it: one line, no control characters, not too long.
        text = "".join(c if c.isprintable() else " " for c in self.reason)
        object.__setattr__(self, "reason", text[:_MAX_REASON])


@dataclass(frozen=True)
class RoundRecord:
    """What the server notes about a round: one line of `history.jsonl`.

    Attributes
    ----------
    round : int
    sites : tuple of str
        Names of the sites whose releases were used, sorted.
    failures : tuple of Failure
    updated : bool
        False where the quorum was missed and the global factors stayed as they were.
    bytes_down, bytes_up : int
        Bytes of the messages as Flower serialises them: server to sites, sites to server.
    seconds : float
        From sending the requests to the end of the update.
    """

    round: int
    sites: tuple[str, ...]
    failures: tuple[Failure, ...]
    updated: bool
    bytes_down: int
    bytes_up: int
    seconds: float

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> RoundRecord:
        """Read what `dataclasses.asdict` and JSON made of a record."""
        failures = tuple(Failure(**failure) for failure in line["failures"])
        own = {"round": int(line["round"]), "sites": tuple(line["sites"]), "failures": failures}
        return cls(**{**line, **own})


class Coordinator:
    """Global factors and what happens to them, round by round.

    Parameters
    ----------
    feature_shape : sequence of int
        Number of codes of each feature mode.
    solver, privacy, run : settings
    vocabulary : str
        Digest of the vocabularies; sites that hold another one refuse. "" asks for no check.
    run_dir : path, optional
        Where `checkpoint.npz` and `history.jsonl` go.
    resume : bool
        Go on from the checkpoint in `run_dir`, under its job name if `run` gives none. Without it,
        an unfinished run found there is refused and a finished one is replaced.

    Raises
    ------
    SettingsError
        If the settings cannot work together.
    StateError
        If there is no checkpoint to go on from, or the one found is damaged, unfinished or of
        another run.

    Attributes
    ----------
    factors : tuple of ndarray of float32
        The global factors now.
    records : list of RoundRecord
        The rounds so far.
    """

    def __init__(
        self,
        feature_shape: Sequence[int],
        *,
        solver: SolverSettings | None = None,
        privacy: PrivacySettings | None = None,
        run: RunSettings | None = None,
        vocabulary: str = "",
        run_dir: str | Path | None = None,
        resume: bool = False,
    ) -> None:
        if len(feature_shape) == 0 or any(size < 1 for size in feature_shape):
            raise SettingsError(f"feature shape: need positive sizes, got {tuple(feature_shape)}")
        self.solver = solver or SolverSettings()
        self.privacy = privacy or PrivacySettings()
        self.run = run or RunSettings()
        self.privacy.check_solver(self.solver)
        self.vocabulary = vocabulary
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.factors: Factors = initial_factors(feature_shape, self.solver.rank, self.run.seed)
        self.records: list[RoundRecord] = []
        elastic_step(self.solver, self.run.elastic_step, max(self.run.sites, self.run.min_sites))
        if self.run_dir is not None:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._open(self.run_dir / CHECKPOINT, resume=resume)
        if not self.run.job:
            self.run = replace(self.run, job=f"job-{uuid.uuid4().hex[:12]}")

    @property
    def finished_rounds(self) -> int:
        """Rounds behind us; the next one is this plus 1."""
        return self.records[-1].round if self.records else 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the global factors, for checking replies."""
        return [factor.shape for factor in self.factors]

    def request(self, round_number: int) -> RoundRequest:
        """What to ask of every site in this round.

        Raises
        ------
        SettingsError
            Beyond the rounds of the run settings, which sites plan their budget for.
        """
        if round_number > self.run.rounds:
            raise SettingsError(
                f"rounds: the run settings have {self.run.rounds}, round {round_number} was asked "
                "for; give Flower and the run settings the same number"
            )
        return RoundRequest(
            job=self.run.job,
            round=round_number,
            rounds=self.run.rounds,
            seed=self.run.seed,
            solver=self.solver,
            privacy=self.privacy,
            vocabulary=self.vocabulary,
            anchors=self.factors,
        )

    def check_connected(self, sites: int, *, first: bool) -> None:
        """Decide whether a round may begin with the sites that are connected.

        Later rounds may begin below the quorum: they are noted as missed, and a site may be back
        for the next one.

        Raises
        ------
        QuorumError
            If the first round lacks its quorum.
        SettingsError
            If the first round has more sites than the elastic step is stable for (see
            `elastic_step`); later ones make it smaller.
        """
        run = self.run
        if sites < run.min_sites and first:
            raise QuorumError(
                f"{sites} site(s) connected within {run.wait_timeout:g} s (wait-timeout); "
                f"the quorum (min-sites) is {run.min_sites}"
            )
        if sites < max(run.sites, run.min_sites):
            _logger.warning("%d of %d sites connected; going on", sites, run.sites or run.min_sites)
        if first:
            elastic_step(self.solver, run.elastic_step, max(sites, 1))

    def close_round(
        self,
        round_number: int,
        replies: Sequence[SiteReply],
        failures: Sequence[Failure],
        *,
        bytes_down: int,
        bytes_up: int,
        seconds: float,
    ) -> RoundRecord:
        """Pull the global factors toward the replies, note the round, write the checkpoint.

        Below the quorum the factors stay as they are, and the record says so.
        """
        unique, repeated = _without_repeated_names(replies)
        failed = [*failures, *repeated]
        for failure in failed:
            _logger.warning("round %d: %s: %s", round_number, failure.who, failure.reason)
        enough = len(unique) >= self.run.min_sites
        if enough:
            # Sites that joined after the first round may be more than the step is stable for.
            chosen = elastic_step(self.solver, self.run.elastic_step, 1)
            step = min(chosen, 1 / len(unique))
            self.factors = elastic_average(self.factors, [r.factors for r in unique], step)
        else:
            _logger.warning(
                "round %d: %d usable replies, quorum is %d: the global model stays as it was",
                round_number, len(unique), self.run.min_sites,
            )  # fmt: skip
        names = tuple(reply.site for reply in unique)
        record = RoundRecord(
            round_number, names, tuple(failed), enough, bytes_down, bytes_up, seconds
        )
        self.records.append(record)
        if self.run_dir is not None:
            self._write(self.run_dir)
        return record

    def check_learned(self) -> None:
        """Refuse to call a run finished in which no round met the quorum.

        Raises
        ------
        QuorumError
            With the failures of the last round.
        """
        if any(record.updated for record in self.records):
            return
        last = self.records[-1].failures if self.records else ()
        why = "; ".join(f"{f.who}: {f.reason}" for f in last) or "no site answered"
        raise QuorumError(f"no round met the quorum of {self.run.min_sites} site(s). Last: {why}")

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on for its continuation to be the same run."""
        return {
            **self.solver.to_config(),
            **self.privacy.to_config(),
            "seed": self.run.seed,
            "rounds": self.run.rounds,
            "elastic-step": self.run.elastic_step,
            "vocabulary": self.vocabulary,
            "shapes": [list(shape) for shape in self.shapes],
        }

    def _write(self, folder: Path) -> None:
        meta = {
            "identity": self._identity(),
            "job": self.run.job,
            "rounds": self.run.rounds,
            "records": [asdict(record) for record in self.records],
        }
        arrays: dict[str, Any] = {
            f"factor_{n}": factor for n, factor in enumerate(self.factors, start=1)
        }
        with replacing(folder / CHECKPOINT) as file:
            np.savez(file, meta=np.array(json.dumps(meta)), **arrays)
        lines = "".join(json.dumps(asdict(record)) + "\n" for record in self.records)
        with replacing(folder / HISTORY) as file:
            file.write(lines.encode())

    def _open(self, path: Path, *, resume: bool) -> None:
        if not path.exists():
            if resume:
                raise StateError(f"{path}: no checkpoint to resume from")
            return
        found = _read_checkpoint(path)
        if not resume:
            if found.finished_rounds < found.rounds:
                raise StateError(
                    f"{path.parent} holds an unfinished run (round {found.finished_rounds} of "
                    f"{found.rounds}): set resume = true to go on with it, or choose another folder"
                )
            return
        mine = self._identity() | {"job": self.run.job or found.job}
        theirs = found.identity | {"job": found.job}
        if differing := [key for key in mine if mine[key] != theirs.get(key)]:
            raise StateError(
                f"{path}: a checkpoint of another run; they differ in {', '.join(differing)}"
            )
        self.run = replace(self.run, job=found.job)
        self.factors = found.factors
        self.records = found.records
        _logger.info("resumed from %s after round %d", path, self.finished_rounds)


@dataclass(frozen=True, eq=False)
class _Checkpoint:
    identity: dict[str, Any]
    job: str
    rounds: int
    records: list[RoundRecord]
    factors: Factors

    @property
    def finished_rounds(self) -> int:
        return self.records[-1].round if self.records else 0


def _read_checkpoint(path: Path) -> _Checkpoint:
    try:
        arrays = load_npz(path, ["meta"])
        meta = json.loads(str(arrays["meta"]))
        identity = dict(meta["identity"])
        check_name("job", meta["job"])
        records = [RoundRecord.from_dict(line) for line in meta["records"]]
        factors = checked_factors(
            [arrays[f"factor_{n + 1}"] for n in range(len(identity["shapes"]))],
            rank=identity["rank"],
            who="checkpoint",
        )
        if [list(factor.shape) for factor in factors] != identity["shapes"]:
            raise DataError("factors of other shapes than noted")
        return _Checkpoint(identity, meta["job"], int(meta["rounds"]), records, factors)
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: damaged checkpoint ({type(error).__name__})") from None


def _without_repeated_names(
    replies: Sequence[SiteReply],
) -> tuple[list[SiteReply], list[Failure]]:
    """Replies sorted by site; those that share a name are all left out, since none can be told."""
    count = Counter(reply.site for reply in replies)
    unique = sorted((r for r in replies if count[r.site] == 1), key=lambda reply: reply.site)
    repeated = [
        Failure(name, f"{n} sites call themselves {name!r}; none of them is used")
        for name, n in sorted(count.items())
        if n > 1
    ]
    return unique, repeated
