"""Check phenotype assignments against patients' codes, their deaths and the planted truth.

    python -m simulation.studies.who_has data/diabetes --half report --rank 20 --epsilons inf 4 1
    python -m simulation.studies.who_has synthetic:demo --rank 12 --epsilons inf 4 1

Each model has a row. *Patients* is the phenotypes' mean prevalence, and *sum* is their total
prevalence. *None* is the share of patients without a phenotype. *Precision* is the share of a
phenotype's patients who carry a leading code of every mode. *Top* is the share who carry the
heaviest code of every mode. *Ratio* divides a phenotype's patients by the carriers of its leading
codes, in the mode with the fewest carriers. The largest ratio is shown. *Deaths* counts phenotypes
whose death rate is within two standard errors of the rate among carriers of the heaviest codes. For
made-up patients, *truth* counts phenotypes whose prevalence is within a factor of 1.5 of the
planted one. The rule for having a phenotype was tuned on ``--half tune``. Noise is fresh.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.synthetic import SyntheticSettings, preset, synthetic, true_memberships
from dpfact_flower.evaluation.membership import (
    has_phenotype,
    leading_codes,
    mode_presence,
    scores,
)
from dpfact_flower.notebook.federated import federate
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.cp import match_columns
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.studies.halves import HALF, half, merged
from simulation.systems import NO_NOISE

_PLANTED = "synthetic:"
_HEAD = "epsilon | patients | sum | none | precision (least) | top (least) | ratio | deaths | truth"


def row(cohort: Cohort, factors: Factors, planted: SyntheticSettings | None) -> str:
    """Return the row of one model."""
    parts = [has_phenotype(scores(site.tensor, factors)) for site in cohort.sites]
    has, count = np.concatenate(parts), np.concatenate(parts).sum(axis=0)
    by_mode = [_carriers(cohort, n, leading_codes(f)) for n, f in enumerate(factors, start=1)]
    tops = [_carriers(cohort, n, f == f.max(axis=0)) for n, f in enumerate(factors, start=1)]
    led, topped = (np.logical_and.reduce(own) for own in (by_mode, tops))
    kept = count > 0
    precise, top = ((has & own).sum(axis=0)[kept] / count[kept] for own in (led, topped))
    fewest = np.min([own.sum(axis=0) for own in by_mode], axis=0)
    cells = [
        f"{has.mean():.1%}", f"{has.mean(axis=0).sum():.0%}", f"{1 - has.any(axis=1).mean():.0%}",
        f"{precise.mean():.2f} ({precise.min():.2f})", f"{top.mean():.2f} ({top.min():.2f})",
        f"{(count / np.maximum(fewest, 1)).max():.2f}",
        _deaths(cohort, has, topped),
        _truth(factors, has, planted) if planted else "",
    ]  # fmt: skip
    return " | ".join(cells)


def _carriers(cohort: Cohort, mode: int, codes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return who has a code of each phenotype in one mode, shape (patients, phenotypes)."""
    wanted = codes.astype(np.float64)
    return np.concatenate([mode_presence(s.tensor, mode) @ wanted > 0 for s in cohort.sites])


def _deaths(cohort: Cohort, has: NDArray[np.bool_], led: NDArray[np.bool_]) -> str:
    if DIED not in cohort.labels:
        return ""
    died = np.concatenate([site.labels[DIED] for site in cohort.sites]).astype(float)
    counts = has.sum(axis=0), led.sum(axis=0)
    enough = np.minimum(*counts) > 0
    own, theirs = (died @ who / np.maximum(n, 1) for who, n in zip((has, led), counts, strict=True))
    error = np.sqrt(theirs * (1 - theirs) / np.maximum(counts[0], 1))
    near = (np.abs(own - theirs) <= 2 * error)[enough]
    return f"{near.sum()} of {len(near)}"


def _truth(factors: Factors, has: NDArray[np.bool_], planted: SyntheticSettings) -> str:
    """Return the column *Truth*. Phenotypes are matched with planted ones by their codes."""
    truth, cohort = np.concatenate(true_memberships(planted)).sum(axis=0), synthetic(planted)
    assert cohort.truth is not None
    match = match_columns(factors, cohort.truth.factors)
    ratio = has.sum(axis=0)[match.estimate] / np.maximum(truth[match.truth], 1)
    near = (ratio < 1.5) & (ratio > 1 / 1.5)
    return f"{near.sum()} of {len(near)} (median {np.median(ratio):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of one cohort."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", help="a folder that dpfact data wrote, or synthetic:PRESET")
    parser.add_argument("--rank", type=at_least(1), default=20)
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[NO_NOISE, 4.0, 1.0])
    parser.add_argument(
        "--seeds", type=at_least(1), default=1, help="number of models at an epsilon"
    )
    parser.add_argument("--half", **HALF)
    parser.add_argument("--merge", type=at_least(1), default=1, help="merge so many sites into one")
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        _table(given)


def _table(given: argparse.Namespace) -> None:
    print(f"{given.data} ({given.half}), R = {given.rank}\n{_HEAD}", flush=True)  # noqa: T201
    for seed in range(given.seeds):
        planted = None
        if given.data.startswith(_PLANTED):
            planted = preset(given.data.removeprefix(_PLANTED), seed=seed)
            cohort = synthetic(planted)
        else:
            cohort = half(merged(Cohort.load(Path(given.data)), given.merge), given.half)
        for epsilon in given.epsilons:
            noisy = epsilon < NO_NOISE
            settings = {"privacy": "patient", "epsilon": epsilon} if noisy else {"privacy": "none"}
            run = federate(sites=cohort, measure=False, rank=given.rank, seed=seed, **settings)
            label = f"{epsilon:g}" if noisy else "inf"
            print(f"{label} | {row(cohort, run.model.factors, planted)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
