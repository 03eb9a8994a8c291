"""The systems of the evaluation by name, and the computation of a job.

All systems start from the same factors. Each patient's cells are scaled to norm 1, as patient mode
requires. The paper fits counts with eta = .01, gamma = 5 and hand-picked values of mu. P-SGD here
uses the package's default eta and relative_elastic, and the mu that was best on the synthetic EHR.
Only the system "published" uses the paper's values.
"""

import inspect
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.client_app import app as client_app
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import synthetic
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.evaluation.prediction import code_presence, code_volume
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.history import RoundRecord
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.strategy import DPFact
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.cp import factor_match_score
from simulation.baselines import Snapshot, pooled
from simulation.baselines.centralised import centralised
from simulation.baselines.cp_als import cp_als
from simulation.baselines.trip_flower import trip
from simulation.paper import measures
from simulation.paper.datasets import load, planted_memberships, reported
from simulation.paper.jobs import Job, Result
from simulation.systems import coordinate, naive, paper_solver, play, shuffled

DESCRIPTION = "description"
"""System of a job without a fit. The job's result is the size of the data."""
NONE = PrivacySettings(privacy="none")
_PULL, _MU, _OFF = 0.01, 0.5, 0.3
_SMALL_STEP = 1e-3
_ANY = Job("any", "any", 1, 1)
_WIDE = 5000
"""Total number of codes above which patient mode first selects the most frequent codes."""
_KEPT = "202x316"


@dataclass(frozen=True)
class System:
    """A system as the page shows it.

    `play` maps a job and a cohort to snapshots. If the system is not a factorisation, `predictors`
    maps them to predictors per site. `noise` is the meaning of the system's epsilon, or empty if
    there is no noise.
    """

    title: str
    play: Callable[[Job, Cohort], Iterator[Snapshot]] | None = None
    noise: str = ""
    predictors: Callable[[Job, Cohort], list[Any]] | None = None


def compute(job: Job) -> Result:
    """Run a job."""
    if job.sites:
        return _traffic(job)
    if job.system == DESCRIPTION:
        return Result(measures.description(load(job.data)), 0.0)
    cohort, system = load(job.data), SYSTEMS[job.system]
    if system.play is None:
        assert system.predictors is not None
        predictors = system.predictors(job, cohort)
        codes = job.system == "raw-codes"
        return Result(
            {"auc": measures.death_scores(predictors, cohort, job.splits, codes=codes)}, 0.0
        )
    points, final = [], None
    for final in system.play(job, cohort):
        points.append(measures.trace(final))
    assert final is not None
    shared = tuple(factor.astype(np.float32) for factor in final.shared)
    error = measures.shared_error(cohort, shared)
    values: dict[str, Any] = {
        "trace": points,
        "shared": {"rmse": error.rmse.all_cells, "fit": error.fit},
        "norms": measures.norms(final.models),
        "fms_planted": _planted_match(shared, cohort),
        "auc": measures.death_scores(
            [measures.memberships(model) for model in final.models], cohort, job.splits
        ),
    }
    if job.tables:
        values["tables"] = measures.tables(final.models, shared, cohort)
        values["sites"] = [site.name for site in cohort.sites]
    return Result(values, final.seconds, shared)


def _planted_match(shared: Factors, cohort: Cohort) -> float | None:
    positive = tuple(np.abs(factor) for factor in shared)  # a pair of signs makes no difference
    return None if cohort.truth is None else factor_match_score(positive, cohort.truth.factors)


def described() -> dict[str, str]:
    """Describe the settings of every system."""
    own, noisy = _psgd(_ANY), paper_solver(_ANY.rank)
    share = inspect.signature(trip).parameters["share"].default
    return {
        "P-SGD": f"eta {own.eta:g}, relative-elastic {own.relative_elastic:g}, {own.tau} passes a "
        f"round, zeros sampled, l2,1 weight {_MU:g}, the server's step 1 / T",
        "the paper's noise": f"eta {noisy.eta:g}, gamma {noisy.gamma:g}, {noisy.tau} passes, "
        f"gradients clipped to {noisy.clip:g}: the best of a search on the demo's data at epsilon "
        "8 (the noise grows with eta, passes and clip)",
        "the paper's noise, small steps": f"eta {_SMALL_STEP:g}, {own.tau} passes, gradients "
        "clipped to 1",
        "exact": "one iteration a round, relative-elastic "
        f"{SolverSettings().relative_elastic:g}, relative-l21 {_OFF:g} from half of the rounds on",
        "TRIP": f"omega {share:g} of a phenotype's average share of the data, the best of four on "
        "the synthetic EHR",
        "CP-ALS": "pyttb's defaults",
        "patient mode": "planned from epsilon, delta and public sizes",
        "P-SGD as published": "the paper's eta, gamma and passes, non-zeros alone, signs free; "
        "no l2,1, because the paper's mu are thresholds for its counts",
    }


# --- Factorisations -------------------------------------------------------------------------------


def _psgd(job: Job, **changes: Any) -> SolverSettings:
    chosen = {"tau": 2, "mu_from_round": 1, **changes}
    return SolverSettings(rank=job.rank, solver="psgd", **chosen)


def _exact(job: Job, **changes: Any) -> SolverSettings:
    usual = changes.pop("relative_l21", 0.0)
    off = job.relative_l21 if job.relative_l21 >= 0 else usual
    return SolverSettings(
        rank=job.rank, relative_l21=off, mu_from_round=job.rounds // 2 + 1 if off else 1, **changes
    )


def _dpfact(
    job: Job, cohort: Cohort, solver: SolverSettings, privacy: PrivacySettings = NONE
) -> Iterator[Snapshot]:
    step = 0.0 if privacy.resolved(solver).is_relative else 1 / len(cohort.sites)
    run = RunSettings(rounds=job.rounds, seed=job.seed, elastic_step=step)
    return play(coordinate(cohort, solver, privacy, run), cohort)


def _noisy(job: Job, **changes: Any) -> PrivacySettings:
    """Return settings with seeded noise, which makes runs repeatable but protects nobody."""
    return PrivacySettings(epsilon=job.epsilon, delta=job.delta, noise_seed=job.seed, **changes)


def _paper(job: Job, cohort: Cohort, mu: float) -> Iterator[Snapshot]:
    """Run the paper's mechanism with the best settings for its noise."""
    return _dpfact(job, cohort, paper_solver(job.rank, mu=mu), _noisy(job, privacy="paper"))


def _paper_small(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    """Run the paper's mechanism with small steps: little noise, but the model hardly changes."""
    solver = _psgd(job, eta=_SMALL_STEP, gamma=_PULL, clip=1.0, mu=_MU)
    return _dpfact(job, cohort, solver, _noisy(job, privacy="paper"))


def _patient(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    sizes = [len(vocabulary) for vocabulary in cohort.vocabularies]
    privacy = _noisy(job, patients=len(cohort), codes=_KEPT if sum(sizes) > _WIDE else "")
    coordinator = coordinate(
        cohort, SolverSettings(rank=job.rank, relative_l21=0.0), privacy, RunSettings(seed=job.seed)
    )
    for snapshot in play(coordinator, cohort):
        if not (selection := coordinator.rule.selection):
            yield snapshot
            continue
        shared = []
        for size, factor, kept in zip(sizes, snapshot.shared, selection, strict=True):
            whole = np.zeros((size, job.rank), np.float32)  # other codes have no weight
            whole[kept] = factor
            shared.append(whole)
        (refitted,) = _single(job, cohort, tuple(shared))
        seconds = snapshot.seconds + refitted.seconds
        yield replace(refitted, round=snapshot.round, seconds=seconds)


def _single(job: Job, cohort: Cohort, shared: Factors) -> Iterator[Snapshot]:
    """Return a snapshot of shared factors alone, with every patient fitted to them."""
    began = time.perf_counter()
    tensors = [site.tensor.scaled_to_unit_patients() for site in cohort.sites]
    models = [(measures.projected(tensor, shared), *shared) for tensor in tensors]
    yield Snapshot.of(job.rounds, models, shared, tensors, time.perf_counter() - began)


def _naive(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    shared = naive(
        cohort, job.rank, job.epsilon, delta=job.delta, seed=job.seed, noise_seed=job.seed
    )
    return _single(job, cohort, shared)


def _random(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    """Shuffle each column of the exact solver's features. Only their sparsity is kept."""
    *_, learned = _dpfact(job, cohort, _exact(job))
    rng = np.random.default_rng([job.seed, job.rank])
    shared = tuple(rng.permuted(factor, axis=0) for factor in learned.shared)
    return _single(job, cohort, shared)


def _null(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    """Fit the exact solver to patients who have one person's procedures and another's diagnoses."""
    tensor = shuffled(pooled(cohort), seed=job.seed)
    site = replace(cohort.sites[0], tensor=tensor, labels={}, patients=None)
    *_, last = _dpfact(job, replace(cohort, sites=(site,), truth=None), _exact(job))
    return _single(job, cohort, last.shared)


def _cp_als(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    return cp_als(cohort, SolverSettings(rank=job.rank), rounds=job.rounds, seed=job.seed)


def _trip(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    return trip(cohort, SolverSettings(rank=job.rank), rounds=job.rounds, seed=job.seed)


def _published(job: Job, cohort: Cohort) -> Iterator[Snapshot]:
    """Run P-SGD as published, but without noise and without the l2,1 term."""
    solver = _psgd(job, eta=1e-2, gamma=5.0, zeros="none", nonnegative=False, relative_elastic=0.0)
    run = RunSettings(rounds=job.rounds, seed=job.seed, start="random")
    return play(coordinate(cohort, solver, NONE, run), cohort)


PAPER_NOISE = "claimed for an entry, not proven"
OUR_NOISE = "proven for a patient"


def _raw_codes(job: Job, cohort: Cohort) -> list[Any]:
    return [code_presence(site.tensor) for site in cohort.sites]


def _volume(job: Job, cohort: Cohort) -> list[Any]:
    return [code_volume(site.tensor) for site in cohort.sites]


SYSTEMS: dict[str, System] = {
    "cp-als": System("CP-ALS, centralised", _cp_als),
    "sgd": System(
        "SGD, centralised",
        lambda job, c: centralised(c, _psgd(job), rounds=job.rounds, seed=job.seed),
    ),
    "trip": System("TRIP", _trip),
    "psgd": System("DPFact (P-SGD) w/o DP", lambda job, c: _dpfact(job, c, _psgd(job, mu=_MU))),
    "psgd-no-l21": System(
        "DPFact (P-SGD) w/o DP, w/o l2,1", lambda job, c: _dpfact(job, c, _psgd(job))
    ),
    "paper": System("DPFact, the paper's noise", lambda job, c: _paper(job, c, _MU), PAPER_NOISE),
    "paper-no-l21": System(
        "DPFact, the paper's noise, w/o l2,1", lambda job, c: _paper(job, c, 0.0), PAPER_NOISE
    ),
    "paper-small": System("DPFact, the paper's noise, small steps", _paper_small, PAPER_NOISE),
    "exact": System(
        "DPFact (exact) w/o DP", lambda job, c: _dpfact(job, c, _exact(job, relative_l21=_OFF))
    ),
    "exact-no-l21": System(
        "DPFact (exact) w/o DP, w/o l2,1", lambda job, c: _dpfact(job, c, _exact(job))
    ),
    "patient": System("DPFact, patient mode (ours)", _patient, OUR_NOISE),
    "naive": System("the paper's scheme made rigorous naively", _naive, OUR_NOISE),
    "published": System("P-SGD as published, non-zeros alone", _published),
    "null": System("fitted to shuffled patients", _null),
    "random": System("random factors, as sparse", _random),
    "raw-codes": System("raw codes", predictors=_raw_codes),
    "volume": System("code volume alone", predictors=_volume),
    "planted": System(
        "planted memberships (ceiling)",
        predictors=lambda job, c: planted_memberships(job.data) or [],
    ),
}
"""All systems by key, in the order of the page."""


# --- Traffic --------------------------------------------------------------------------------------

TRAFFIC = ("dpfact", "patient", "trip", "trip-lean")
"""Systems whose messages are counted. In trip-lean, multipliers stay at the sites."""


def _traffic(job: Job) -> Result:
    """Measure the bytes of real Flower messages in each round.

    The bytes depend only on the codes, so few patients are enough. Patient mode, however, runs on
    all patients, because it sends integers whose size affects compression.
    """
    own = reported(job.data)
    patients = own.patients if job.system == "patient" else 40 * job.sites
    shares = ",".join(["1"] * job.sites)
    cohort = synthetic(replace(own, patients=patients, shares=shares, distinct=0, local=0.0))
    solver, rounds = SolverSettings(rank=job.rank, relative_l21=0.0), 2
    if job.system.startswith("trip"):
        meter: list[RoundRecord] = []
        lean = job.system == "trip-lean"
        for _ in trip(cohort, solver, rounds=rounds, seed=0, multipliers=not lean, meter=meter):
            pass
        return Result({"rounds": _bytes(meter)}, 0.0)
    privacy = NONE
    if job.system == "patient":
        wide = sum(len(v) for v in cohort.vocabularies) > _WIDE
        privacy = PrivacySettings(
            epsilon=job.epsilon, delta=job.delta, noise_seed=0, patients=own.patients,
            codes=_KEPT if wide else "",
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        cohort.save(Path(folder) / "data")
        config = {"data": f"{folder}/data", "out": f"{folder}/run", "state-dir": f"{folder}/sites"}
        nodes = [{"partition-id": n, "num-partitions": job.sites} for n in range(job.sites)]
        strategy = DPFact(
            [len(v) for v in cohort.vocabularies], solver=solver, privacy=privacy,
            run=RunSettings(rounds=rounds, sites=job.sites),
            vocabulary=joint_digest(cohort.vocabularies),
        )  # fmt: skip
        strategy.start(InProcessGrid(client_app, nodes, config))
    return Result({"rounds": _bytes(strategy.coordinator.records)}, 0.0)


def _bytes(meter: list[RoundRecord]) -> list[dict[str, int]]:
    return [{"down": record.bytes_down, "up": record.bytes_up} for record in meter]
