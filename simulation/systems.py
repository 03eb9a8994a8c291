"""Run DPFact and other private schemes on a cohort, without messages or files.

`play` runs the package's own sites and server. `patient_mode` and `paper_mode` are complete runs.
`naive` makes the paper's scheme rigorous in the simplest way. `shuffled` makes data without
anything to learn.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.privacy import Noise, mu_for_epsilon, release_nothing, sigma_of
from dpfact_flower.privacy.secure_sum.keys import Member
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.server.secure import slot_totals
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.refit import personal
from dpfact_flower.site.round import JobState, RoundOutcome
from dpfact_flower.solver import solve
from dpfact_flower.tensor import Factors, SparseTensor, cp
from dpfact_flower.tensor.arrays import distinct
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from dpfact_flower.wire.secure import SecureStage
from simulation.baselines import Snapshot

NO_NOISE = 1e6
"""Epsilon that stands for infinity, because its noise is negligible compared with the data."""
_NAIVE_ROUNDS = 30


def play(coordinator: Coordinator, cohort: Cohort, *, own_refit: bool = True) -> Iterator[Snapshot]:
    """Run the package's own sites and server on a cohort, from the first round.

    Yield a snapshot after each round in which every site has its own model. In patient mode, this
    is only the last round, in which sites fit their own models. `own_refit` includes that round.
    """
    released: list[dict[int, Any]] = [{} for _ in cohort.sites]
    kept = [JobState(release=own.get) for own in released]
    patient, seconds = coordinator.privacy.privacy == "patient", 0.0
    for number in range(1, coordinator.rounds + (1 if own_refit or not patient else 0)):
        request = coordinator.request(number)
        if coordinator.secure is not None and coordinator.planned_release(number):
            members = tuple(Member(site.name, bytes(32), bytes(64)) for site in cohort.sites)
            request = replace(request, secure=SecureStage("sum", members=members))
        replies, outcomes = [], []
        for place, site in enumerate(cohort.sites):
            began = time.perf_counter()
            rule = PatientRound if patient else ElasticRound
            work = rule(site.vocabularies, request, site=site.name, simulation=True)
            outcome = _refitted(site, request) if work.is_final else work.run(site, kept[place])
            measured = outcome.measures
            seconds += measured.seconds if measured else time.perf_counter() - began
            kept[place] = replace(kept[place], state=outcome.state)
            released[place][number] = release = cast(Any, outcome.release)
            replies.append(SiteReply(site.name, release.arrays))
            outcomes.append(outcome)
        began = time.perf_counter()
        sums = _sums(coordinator, number, outcomes) if request.secure else None
        coordinator.close_round(number, replies, [], bytes_down=0, bytes_up=0, seconds=0, sums=sums)
        seconds += time.perf_counter() - began
        models = tuple(outcome.state.factors for outcome in outcomes if outcome.state)
        errors = [outcome.measures.error for outcome in outcomes if outcome.measures]
        if len(models) == len(errors) == len(outcomes):
            error = reduce(add, errors)
            yield Snapshot(number, models, coordinator.factors, error, seconds)


def _sums(
    coordinator: Coordinator, number: int, outcomes: Sequence[RoundOutcome]
) -> list[SiteReply]:
    """Return the totals that the server learns from a secure sum, after masks have cancelled."""
    planned = coordinator.planned_release(number)
    assert planned is not None
    total = reduce(add, (outcome.release.arrays[0] for outcome in outcomes))
    return slot_totals(total, planned)


def _refitted(site: SiteData, request: RoundRequest) -> RoundOutcome:
    """Refit a site's own model at the end of a run."""
    tensor = site.select_codes(request.selection).tensor
    if tensor.nnz == 0:
        return RoundOutcome(release_nothing())
    return RoundOutcome(release_nothing(), *personal(tensor, request, site.name))


def coordinate(
    cohort: Cohort, solver: SolverSettings, privacy: PrivacySettings, run: RunSettings
) -> Coordinator:
    """Return the server of a run on a cohort."""
    return Coordinator(
        [len(vocabulary) for vocabulary in cohort.vocabularies],
        solver=solver, privacy=privacy, run=replace(run, sites=len(cohort.sites)),
    )  # fmt: skip


def run(
    cohort: Cohort, solver: SolverSettings, privacy: PrivacySettings, run: RunSettings
) -> Factors:
    """Run the package's own sites and server on a cohort, and return the global factors."""
    coordinator = coordinate(cohort, solver, privacy, run)
    for _ in play(coordinator, cohort, own_refit=False):
        pass
    return coordinator.factors


def patient_mode(cohort: Cohort, rank: int, epsilon: float, *, seed: int = 0) -> Factors:
    """Run patient mode, whose guarantee is proven for each patient, with planned settings."""
    privacy = PrivacySettings(epsilon=epsilon, patients=len(cohort))
    return run(cohort, SolverSettings(rank=rank, relative_l21=0.0), privacy, RunSettings(seed=seed))


def paper_solver(rank: int, **changes: Any) -> SolverSettings:
    """Return the paper's solver with the best settings for its noise.

    The settings were found by a search at epsilon 8 on the demo cohort, which charged no budget.
    The search covered eta from .003 to .03, clip from .01 to 1, tau 2 and 5, and 10 and 40 rounds.
    """
    chosen = {"tau": 5, "eta": 1e-2, "gamma": 0.05, "clip": 0.1, "mu_from_round": 1, **changes}
    return SolverSettings(rank=rank, solver="psgd", **chosen)


def paper_mode(cohort: Cohort, rank: int, epsilon: float, *, seed: int = 0) -> Factors:
    """Run DPFact with the paper's noise. Its `epsilon` is claimed for one entry, but not proven."""
    privacy = PrivacySettings(privacy="paper", epsilon=epsilon)
    rounds = RunSettings(rounds=40, seed=seed, elastic_step=1 / len(cohort.sites))
    return run(cohort, paper_solver(rank), privacy, rounds)


def naive(
    cohort: Cohort,
    rank: int,
    epsilon: float,
    *,
    delta: float = 1e-5,
    seed: int = 0,
    noise_seed: int | None = None,
) -> Factors:
    """Run the paper's scheme, made rigorous by clipping updates and adding enough noise.

    Updates are clipped to norm 1, so one patient changes an update by at most 2, whatever the site
    computes or stores. The noise covers this change, which proves the guarantee for each patient. A
    run with a `noise_seed` is repeatable and not private.
    """
    rng = np.random.default_rng(seed)
    rho = mu_for_epsilon(epsilon, delta) ** 2 / 2 / _NAIVE_ROUNDS
    noise = 0.0 if epsilon >= NO_NOISE else sigma_of(rho, 2.0)
    solver = SolverSettings(rank=rank, tau=3, relative_l21=0.0)
    tensors = [site.tensor.scaled_to_unit_patients() for site in cohort.sites]
    anchors = initial_factors(cohort.sites[0].tensor.feature_shape, rank, seed)
    patients = [np.zeros((tensor.n_patients, rank), np.float32) for tensor in tensors]
    source = Noise.from_os() if noise_seed is None else Noise.from_seed(noise_seed)
    for _ in range(_NAIVE_ROUNDS):
        moved = [np.zeros(anchor.shape) for anchor in anchors]
        for t, tensor in enumerate(tensors):
            own = replace(solver, gamma=0.05 * tensor.norm_squared() / rank)
            local = solve(tensor, (patients[t], *anchors), anchors, own, rng).factors
            patients[t] = local[0]
            updates = [f.astype(np.float64) - a for f, a in zip(local[1:], anchors, strict=True)]
            length = math.sqrt(sum(float(np.square(update).sum()) for update in updates))
            weight = min(1.0, 1.0 / max(length, 1e-12))
            for mode, update in enumerate(updates):
                moved[mode] += update * weight
                if noise:
                    moved[mode] += source.gaussian(update.shape, noise)
        anchors = unit_columns(
            tuple(a + total / len(tensors) for a, total in zip(anchors, moved, strict=True))
        )
    return anchors


def unit_columns(factors: Sequence[NDArray[Any]]) -> Factors:
    """Return non-negative factors with columns of norm 1."""
    positive = (np.maximum(factor.astype(np.float64), 0) + 1e-9 for factor in factors)
    return tuple(cp.unit_columns(factor).astype(np.float32) for factor in positive)


def shuffled(tensor: SparseTensor, seed: int) -> SparseTensor:
    """Break all relations between modes: permute patients in every feature mode but the first."""
    rng = np.random.default_rng(seed)
    alive, patients = np.unique(tensor.indices[:, 0], return_inverse=True)
    everyone = np.arange(len(alive))
    columns = [_codes_by_patient(tensor, patients, mode) for mode in range(1, tensor.ndim)]
    donors = [everyone, *(rng.permutation(everyone) for _ in columns[1:])]
    counts = [np.diff(first)[donor] for (_, first), donor in zip(columns, donors, strict=True)]
    cells = np.multiply.reduce(counts)
    owner = np.repeat(everyone, cells)
    rest = np.arange(len(owner)) - np.repeat(np.cumsum(cells) - cells, cells)
    index = [alive[owner]]
    for (codes, first), donor, count in zip(columns, donors, counts, strict=True):
        rest, digit = np.divmod(rest, count[owner])  # a cell's number, with one digit per mode
        index.append(codes[first[donor[owner]] + digit])
    return SparseTensor.from_coo(np.column_stack(index), np.ones(len(owner)), tensor.shape)


def _codes_by_patient(
    tensor: SparseTensor, patients: NDArray[np.int64], mode: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a mode's distinct codes by patient, and the index of each patient's first code."""
    size = tensor.shape[mode]
    owners, codes = np.divmod(distinct(patients * size + tensor.indices[:, mode]), size)
    return codes, np.searchsorted(owners, np.arange(patients.max() + 2))
