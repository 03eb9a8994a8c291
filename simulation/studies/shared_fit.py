"""Compare the fit of the shared factors in mode none with that of centralised systems.

    python -m simulation.studies.shared_fit demo data/eicu --rank 12

All figures are for the shared factors alone, with every patient refitted, because this can be
measured for every system. If all feature factors are non-negative, so are the patient factors. Data
are folders that ``dpfact data`` wrote, or presets of the synthetic EHR (NAME or NAME@SEED). Both
kinds of SGD make 40 passes. The value of `relative-elastic` for psgd was tuned on ``--half tune``.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.evaluation.summarise import code_frequencies, shared_error
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.cp import factor_match_score
from simulation.arguments import at_least, one_line_errors
from simulation.baselines import Snapshot
from simulation.baselines.centralised import centralised
from simulation.baselines.cp_als import cp_als
from simulation.studies.halves import HALF, half
from simulation.systems import coordinate, play

_ROUNDS, _PASSES = 40, 2
_ITERATIONS = 30


def load(name: str) -> Cohort:
    """Return a folder's cohort, or the cohort of PRESET@SEED."""
    if Path(name).is_dir():
        return Cohort.load(name)
    kind, _, seed = name.partition("@")
    return synthetic(preset(kind, seed=int(seed or 0)))


def federated(
    cohort: Cohort, solver: SolverSettings, rounds: int, *, seed: int, start: str = "auto"
) -> Iterator[Snapshot]:
    """Run the package's own sites and server, without noise."""
    run = RunSettings.from_config({"rounds": rounds, "seed": seed, "start": start})
    return play(coordinate(cohort, solver, PrivacySettings(privacy="none"), run), cohort)


def patient(cohort: Cohort, rank: int, epsilon: float, *, seed: int) -> Iterator[Snapshot]:
    """Run patient mode with planned settings."""
    solver, run = SolverSettings(rank=rank), RunSettings(seed=seed)
    privacy = PrivacySettings(epsilon=epsilon, patients=len(cohort))
    return play(coordinate(cohort, solver, privacy, run), cohort)


def systems(rank: int, seed: int) -> dict[str, Callable[[Cohort], Iterator[Snapshot]]]:
    """Return the compared systems, keyed by their printed names."""
    exact = SolverSettings(rank=rank)
    psgd = replace(exact, solver="psgd", tau=_PASSES)
    rounds = _ROUNDS // _PASSES
    return {
        "exact": lambda c: federated(c, exact, _ROUNDS, seed=seed),
        "exact, random start": lambda c: federated(c, exact, _ROUNDS, seed=seed, start="random"),
        # The first round only computes the initial factors, without a pass.
        "psgd": lambda c: federated(c, psgd, rounds + 1, seed=seed),
        "SGD, centralised": lambda c: centralised(c, psgd, rounds=rounds, seed=seed),
        "CP-ALS, centralised": lambda c: cp_als(c, exact, rounds=_ITERATIONS, seed=seed),
        "patient mode, epsilon 4": lambda c: patient(c, rank, 4.0, seed=seed),
    }


def row(cohort: Cohort, shared: Factors) -> tuple[float, float | None]:
    """Return the fit of shared factors and, if the truth is known, the factor match."""
    tensors = [site.tensor.scaled_to_unit_patients() for site in cohort.sites]
    positive = all(bool((factor >= 0).all()) for factor in shared)
    features = tuple(factor.astype(np.float32) for factor in shared)
    fit = shared_error(tensors, features, nonnegative=positive).fit
    if cohort.truth is None:
        return fit, None
    return fit, factor_match_score([np.abs(f) for f in features], cohort.truth.factors)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown row per data set and system."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+", help="PRESET, PRESET@SEED or a folder")
    parser.add_argument("--rank", type=at_least(1), default=12)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--half", **HALF)
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        for name in given.data:
            _print(name, half(load(name), given.half), given.rank, given.seed)


def _print(name: str, cohort: Cohort, rank: int, seed: int) -> None:
    tensors = [site.tensor.scaled_to_unit_patients() for site in cohort.sites]
    plain = shared_error(tensors, code_frequencies(tensors)).fit
    print(f"| {name} | code frequencies | {plain:.4f} | |")  # noqa: T201 - the script's output
    for system, started in systems(rank, seed).items():
        *_, last = started(cohort)
        fit, match = row(cohort, last.shared)
        shown = "" if match is None else f"{match:.2f}"
        print(f"| {name} | {system} | {fit:.4f} | {shown} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
