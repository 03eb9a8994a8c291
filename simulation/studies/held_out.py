"""How well a start explains patients it was not made from, alone and fitted to surrogates.

    python -m simulation.studies.held_out paper-synthetic demo --rank 20

The start is made from half of every site's patients, without noise. The other half is refitted to
its factors. Factors that follow chance explain the first half and not the second. Planted factors
have a row of their own. Where phenotypes are faint, other factors explain patients better than the
planted ones, so the best fit is then not the truth.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.errors import DataError
from dpfact_flower.estimation.codes import paired_codes
from dpfact_flower.estimation.start import start_factors
from dpfact_flower.evaluation.summarise import shared_error
from dpfact_flower.server.surrogate_fit import fitted_to_surrogates
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.elastic import unprotected_cooccurrences
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.match import factor_match_score
from simulation.arguments import at_least, one_line_errors
from simulation.studies.halves import half
from simulation.studies.shared_fit import load
from simulation.systems import coordinate, play

_HEADS = ("data", "factors", "fit of the patients used", "of others", "factor match")


def rows(cohort: Cohort, rank: int, rounds: int, seed: int) -> Iterator[tuple[str, Factors]]:
    """Factors made from a cohort without noise, by their names."""
    sizes = [len(vocabulary) for vocabulary in cohort.vocabularies]
    if paired_codes(sizes):
        raise DataError(f"{cohort.name}: too many codes for all of their pairs; keep the first")
    releases = [unprotected_cooccurrences(site.tensor).arrays[0] for site in cohort.sites]
    rng = np.random.default_rng(seed)
    start = start_factors(releases, sizes, rank, 0.0, rng)
    fitted = fitted_to_surrogates(start, releases, 0.0, rng)
    for name, factors in (("start alone", start.factors), ("fitted to surrogates", fitted)):
        yield name, factors
        yield f"{name}, then {rounds} rounds", _learned(cohort, factors, rounds, seed)


def _learned(cohort: Cohort, factors: Factors, rounds: int, seed: int) -> Factors:
    """Global factors after so many rounds of mode none from this start."""
    solver = SolverSettings(rank=factors[0].shape[1])
    run = RunSettings(rounds=rounds, seed=seed, start="random")
    coordinator = coordinate(cohort, solver, PrivacySettings(privacy="none"), run)
    coordinator.start_from(factors)
    for _ in play(coordinator, cohort):
        pass
    return coordinator.factors


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+", help="PRESET, PRESET@SEED or a folder")
    parser.add_argument("--rank", type=at_least(1), default=12)
    parser.add_argument("--rounds", type=at_least(1), default=20)
    parser.add_argument("--seed", type=at_least(0), default=0)
    given = parser.parse_args(arguments)
    print(f"| {' | '.join(_HEADS)} |\n{'|---' * len(_HEADS)}|")  # noqa: T201 - its only product
    with one_line_errors(parser):
        for name in given.data:
            _print(name, load(name), given.rank, given.rounds, given.seed)


def _print(name: str, cohort: Cohort, rank: int, rounds: int, seed: int) -> None:
    used, others = (half(cohort, which) for which in ("tune", "report"))
    found = dict(rows(used, rank, rounds, seed))
    truth = cohort.truth
    if truth is not None:
        planted = tuple(factor.astype(np.float32) for factor in truth.factors)
        found = {"as planted": planted, **found}
    for what, factors in found.items():
        fits = [_fit(patients, factors) for patients in (used, others)]
        match = "" if truth is None else f"{factor_match_score(factors, truth.factors):.2f}"
        print(f"| {name} | {what} | {fits[0]:.4f} | {fits[1]:.4f} | {match} |", flush=True)  # noqa: T201


def _fit(cohort: Cohort, factors: Factors) -> float:
    tensors = [site.tensor.scaled_to_unit_patients() for site in cohort.sites]
    return shared_error(tensors, factors).fit


if __name__ == "__main__":
    main()
