"""Directions of the co-occurrences above the start's noise: how many phenotypes it can find.

    python -m simulation.studies.spectrum data/synpuf18 --merge 3 --ranks 10 20 --epsilons 4 2

The sum of all sites' co-occurrences is a symmetric matrix. The start adds noise of standard
deviation s to each pair of n codes. The noisy matrix keeps 1 - n s^2 / l^2 of an eigenvector with
eigenvalue l, as the squared cosine of the angle to its own eigenvector, and nothing if l is at most
s sqrt(n) (Baik, Ben Arous, Peche; Benaych-Georges and Nadakuditi 2011). This holds if nothing is
known of the factors. Ours are sparse and non-negative, so it is a guide and no bound. Like all
studies it reads cohorts without noise, so use it on cohorts at hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.estimation.pair_fit import unpack
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site.elastic import unprotected_cooccurrences
from dpfact_flower.site.round import scaled
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.studies.halves import HALVES, half, merged


def eigenvalues(cohort: Cohort) -> NDArray[np.float64]:
    """Eigenvalues of the summed co-occurrences without noise, largest first."""
    sites = [scaled(site.tensor, SolverSettings()) for site in cohort.sites]
    released = [unprotected_cooccurrences(tensor).arrays[0] for tensor in sites]
    codes = sum(len(vocabulary) for vocabulary in cohort.vocabularies)
    total = unpack(released, codes).sum(axis=1, dtype=np.float64)
    return np.linalg.eigvalsh(total)[::-1]


def kept(eigenvalues: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Squared cosine between each eigenvector and its noisy counterpart, 0 to 1.

    Parameters
    ----------
    eigenvalues : ndarray of float64, shape (n,)
    noise : float
        Standard deviation of each entry off the diagonal, above 0.
    """
    edge = noise * np.sqrt(len(eigenvalues))
    return 1 - np.square(edge / np.where(eigenvalues > edge, eigenvalues, edge))


def noise_of_sum(cohort: Cohort, rank: int, epsilon: float) -> float:
    """Standard deviation of an entry of all sites' noisy matrices in sum."""
    patients = sum(site.tensor.n_patients for site in cohort.sites)
    privacy = PrivacySettings(epsilon=epsilon, delta=1e-5, patients=patients)
    sizes, sites = [len(vocabulary) for vocabulary in cohort.vocabularies], len(cohort.sites)
    sigma = plan_patient(privacy, sizes=sizes, rank=rank, sites=sites).start.sigma
    return float(sigma * np.sqrt(sites / 2))  # a released value is sqrt(2) of an entry


def lines(
    cohort: Cohort, ranks: Sequence[int], epsilons: Sequence[float]
) -> list[tuple[str | int | float, ...]]:
    """Directions above the noise and what is left of the first R, for each rank and epsilon."""
    found: list[tuple[str | int | float, ...]] = []
    values = eigenvalues(cohort)
    patients = sum(site.tensor.n_patients for site in cohort.sites)
    for rank in ranks:
        for epsilon in epsilons:
            left = kept(values, noise_of_sum(cohort, rank, epsilon))
            above = int(np.count_nonzero(left))
            share = float(left[:rank].mean())
            found.append((cohort.name, patients, rank, epsilon, above, round(share, 2)))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders that dpfact data wrote")
    parser.add_argument("--ranks", type=at_least(1), nargs="+", default=[10, 20, 50])
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[8, 4, 2, 1])
    parser.add_argument(
        "--half", choices=HALVES, default="both", help="which half of each site's patients"
    )
    parser.add_argument(
        "--merge", type=at_least(1), default=1, help="merge so many sites into one, in order"
    )
    given = parser.parse_args(arguments)
    heads = (
        "data",
        "patients",
        "R",
        "epsilon",
        "directions above the noise",
        "left of the first R",
    )
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")  # noqa: T201 - its only product
    with one_line_errors(parser):
        for folder in given.data:
            cohort = half(merged(Cohort.load(folder), given.merge), given.half)
            for line in lines(cohort, given.ranks, given.epsilons):
                print(f"| {' | '.join(map(str, line))} |")  # noqa: T201


if __name__ == "__main__":
    main()
