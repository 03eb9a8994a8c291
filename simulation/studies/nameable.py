"""Count the phenotypes that could be named, for two settings of `weighting`.

    python -m simulation.studies.nameable data/dx_dx --half report --rank 20 --epsilons inf 4 1

The count replaces a clinician who reads a phenotype's leading codes. A code of the first mode and
one of the second are *tied* if at least twice as many patients have both as expected by chance.
A phenotype's *ties* are the weighted share of tied pairs among its leading codes (five per mode).
It could be *named* if that share is at least a half, and its cosine to every other named phenotype
is below a half. *Overlap* is the mean cosine between two phenotypes.

Both settings keep all codes and charge the count of codes to the budget. For comparison, the table
has noiseless fits to shuffled patients, in which no phenotype should be named. Noise is fresh.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.round import scaled
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import distinct
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.baselines import pooled
from simulation.paper.measures import death_scores, projected, shared_error
from simulation.studies.halves import HALVES, half, merged
from simulation.studies.real_data import reference
from simulation.systems import NO_NOISE, run, shuffled, unit_columns

_LEADING = 5
_LIFT, _HALF = 2.0, 0.5
_FEWEST, _SHARE = 3, 1 / 3_000
"""Number and share of patients below which a pair's frequency counts as chance."""
_SPLITS = 5


def tied(tensor: SparseTensor) -> NDArray[np.bool_]:
    """Return a mask of the tied pairs of codes, with a row per code of the first feature mode."""
    first, second = tensor.feature_shape[:2]
    patients, rows, columns = tensor.indices[:, :3].astype(np.int64).T
    pair = distinct((patients * first + rows) * second + columns) % (first * second)
    together = np.bincount(pair, minlength=first * second).reshape(first, second)
    alone = [
        np.bincount(distinct(patients * size + codes) % size, minlength=size)
        for size, codes in ((first, rows), (second, columns))
    ]
    chance = np.outer(*alone) / tensor.n_patients
    enough = together >= max(_FEWEST, _SHARE * tensor.n_patients)
    return np.asarray(enough & (together >= _LIFT * chance))


def ties(model: Factors, pairs: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of tied pairs among each phenotype's leading codes, shape (phenotypes,)."""
    shares = []
    for factor in model[:2]:
        leading = np.sort(factor, axis=0)[-_LEADING:][0]
        kept = np.where(factor >= leading, factor, 0).astype(np.float64)
        shares.append(kept / kept.sum(axis=0))
    return np.einsum("jr,jk,kr->r", shares[0], pairs.astype(np.float64), shares[1])


def likeness(model: Factors) -> NDArray[np.float64]:
    """Return the cosines between phenotypes, shape (phenotypes, phenotypes)."""
    grams = [factor.T.astype(np.float64) @ factor for factor in unit_columns(model)]
    return np.asarray(np.multiply.reduce(grams))


def named(model: Factors, pairs: NDArray[np.bool_]) -> int:
    """Return the number of phenotypes that could be named."""
    strength, alike = ties(model, pairs), likeness(model)
    counted: list[int] = []
    for r in np.argsort(-strength, kind="stable").tolist():
        if strength[r] >= _HALF and (alike[r, counted] < _HALF).all():
            counted.append(r)
    return len(counted)


def private(cohort: Cohort, rank: int, epsilon: float, seed: int, weighting: str) -> Factors:
    """Run patient mode, charge the count of codes to the budget, and keep every code."""
    privacy = PrivacySettings.from_config(
        {
            "epsilon": epsilon, "delta": 1e-5, "weighting": weighting,
            "patients": sum(site.tensor.n_patients for site in cohort.sites),
            "codes": "x".join(str(len(vocabulary)) for vocabulary in cohort.vocabularies),
        }
    )  # fmt: skip
    return run(cohort, SolverSettings(rank=rank, relative_l21=0.0), privacy, RunSettings(seed=seed))


def line(label: str, models: Sequence[Factors], cohort: Cohort, tensor: SparseTensor) -> str:
    """Return a row of the table, with means over models. *Named* has a standard deviation too."""
    pairs = tied(tensor)
    names = [named(model, pairs) for model in models]
    found = {
        "named": f"{np.mean(names):.1f} ± {np.std(names):.1f}",
        "ties": f"{np.mean([ties(model, pairs) for model in models]):.2f}",
        "overlap": f"{np.mean([_overlap(model) for model in models]):.2f}",
        "auc": f"{np.mean([auc(cohort, model) for model in models]):.3f}",
        "fit": f"{np.mean([shared_error(cohort, model).fit for model in models]):.3f}",
    }
    return f"| {label} | " + " | ".join(found.values()) + " |"


def _overlap(model: Factors) -> float:
    alike = likeness(model)
    return float(alike[~np.eye(len(alike), dtype=bool)].mean())


def auc(cohort: Cohort, model: Factors) -> float:
    """Return the AUC of predicting death from a model's memberships, or NaN without labels."""
    sites: list[Any] = [
        projected(scaled(site.tensor, SolverSettings()), model) for site in cohort.sites
    ]
    found = death_scores(sites, cohort, _SPLITS).get("overall")
    return float(np.mean(found)) if found else float("nan")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of one cohort."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="a folder that dpfact data wrote")
    parser.add_argument("--rank", type=at_least(1), default=20)
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[NO_NOISE, 4])
    parser.add_argument("--seeds", type=at_least(1), default=4, help="number of models in a row")
    parser.add_argument(
        "--half", choices=HALVES, default="both", help="which half of each site's patients"
    )
    parser.add_argument("--merge", type=at_least(1), default=1, help="merge so many sites into one")
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        _table(half(merged(Cohort.load(given.data), given.merge), given.half), given)


def _table(cohort: Cohort, given: argparse.Namespace) -> None:
    tensor, seeds = pooled(cohort), range(given.seeds)
    print(f"{cohort.name}, {tensor.n_patients:,} patients, R = {given.rank}")  # noqa: T201
    print("| | named | ties | overlap | auc | fit |\n|---|---|---|---|---|---|")  # noqa: T201
    nulls = [reference(shuffled(tensor, seed), given.rank, seed) for seed in seeds[:2]]
    print(line("shuffled", nulls, cohort, tensor), flush=True)  # noqa: T201
    for epsilon in given.epsilons:
        for weighting in ("none", "inverse-frequency"):
            models = [private(cohort, given.rank, epsilon, s, weighting) for s in seeds]
            label = f"epsilon {'inf' if epsilon >= NO_NOISE else f'{epsilon:g}'}, {weighting}"
            print(line(label, models, cohort, tensor), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
