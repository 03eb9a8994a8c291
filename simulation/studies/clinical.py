"""Compare phenotypes with disease groups and known pairs, and measure coherence, at each epsilon.

    python -m simulation.studies.clinical data/nhds data/diabetes --out runs/clinical

The models come from `simulation.studies.real_data` and are fitted to one half of each site's
patients. The models are private models, noiseless fits (*ceiling*) and fits to shuffled patients
(*null*). In shuffled patients, the diagnoses of one patient stay together, so patterns among
diagnoses remain. The study therefore also includes fits to patients whose codes are shuffled one by
one (*shuffled codes*). Coherence is measured in the other half. A table cell shows the mean over
its models and, if they differ, the range. Disease groups come from CCS.

The output folder keeps the models, so rerunning the script only measures them again. The script
writes clinical.json and clinical.csv.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.evaluation.clinical import BODY_SYSTEMS, CCS, clinical_measures, coherence
from dpfact_flower.evaluation.membership import mode_presence
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.tensor import Factors, SparseTensor
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.paper.report import Table
from simulation.studies.halves import OTHER, half
from simulation.studies.real_data import Study, reference
from simulation.systems import NO_NOISE

_SHORT = {CCS: "ccs", BODY_SYSTEMS: "system"}
_COLUMNS = {
    "about_ccs": "one disease group", "about_system": "one body system",
    "pairs_ccs": "pairs of one group, AUC", "npmi": "NPMI, held out",
}  # fmt: skip


def measures(model: Factors, fitted: Cohort, held_out: Cohort) -> dict[str, float]:
    """Return a model's measures. The prefix ``chance_`` marks the values expected by chance."""
    together = coherence(model, (site.tensor for site in held_out.sites))
    assert together is not None  # these models have many codes
    found = {"npmi": together.value, "chance_npmi": together.by_chance}
    for own in clinical_measures(GlobalModel(model, fitted.vocabularies)):
        name = _SHORT[own.classification]
        found |= {
            f"about_{name}": own.about, f"chance_about_{name}": own.about_by_chance,
            f"pairs_{name}": own.pairs, f"chance_pairs_{name}": own.pairs_by_chance,
            f"grouped_{name}": own.grouped, f"codes_{name}": own.codes,
        }  # fmt: skip
    return found


def rows(
    cohort: Cohort, which: str, rank: int, epsilons: Sequence[float], models: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """Return a row for each model of a cohort."""
    fitted, held_out = half(cohort, which), half(cohort, OTHER[which])
    study = Study(fitted, rank, models, folder / "models" / f"{fitted.name}-{rank}")
    for cell, found in study.cells(epsilons, models):
        name = cell["model"].split(":")[0]
        shown = f"{name}, epsilon {cell['epsilon']}" if cell["epsilon"] else name
        yield from _measured(shown, found, fitted, held_out)
        if name == "null":
            fits = [study.kept(f"codes-{s}", partial(_of_chance, study, s)) for s in range(models)]
            yield from _measured("null: shuffled codes", fits, fitted, held_out)


def _measured(
    name: str, models: Sequence[Factors], fitted: Cohort, held_out: Cohort
) -> Iterator[dict[str, Any]]:
    for number, model in enumerate(models):
        kind = {"data": fitted.name, "rank": model[0].shape[1], "model": name, "number": number}
        yield {**kind, **measures(model, fitted, held_out)}


def _of_chance(study: Study, seed: int) -> Factors:
    return reference(shuffled_codes(study.tensor, seed), study.rank, seed)


def shuffled_codes(tensor: SparseTensor, seed: int) -> SparseTensor:
    """Shuffle the codes between patients one by one, which breaks all relations between codes.

    Each code's frequency and each patient's number of codes per mode stay the same, except where a
    patient would get a code twice.
    """
    rng = np.random.default_rng(seed)
    cells, modes = [], []
    for mode in range(1, tensor.ndim):
        present = mode_presence(tensor, mode)
        codes = rng.permutation(present.indices)
        modes.append([np.unique(own) for own in np.split(codes, present.indptr[1:-1])])
    for patient, lists in enumerate(zip(*modes, strict=True)):
        grid = np.meshgrid([patient], *lists, indexing="ij")
        cells.append(np.stack([axis.ravel() for axis in grid], axis=1))
    index = np.concatenate(cells)
    return SparseTensor.from_coo(index, np.ones(len(index)), tensor.shape)


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each data set and kind of model."""
    heads = ["data", "R", "model", *_COLUMNS.values()]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    kinds = dict.fromkeys((row["data"], row["rank"], row["model"]) for row in found)
    for kind in kinds:
        own = [row for row in found if (row["data"], row["rank"], row["model"]) == kind]
        cells = [_cell([row[key] for row in own if key in row]) for key in _COLUMNS]
        lines.append(f"| {' | '.join([*map(str, kind), *cells])} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    """Format the mean and the range, or ``-`` if the codes have no disease groups."""
    if not values:
        return "-"
    mean, low, high = (f"{value:.3g}" for value in (np.mean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every data set, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders that dpfact data wrote")
    parser.add_argument("--out", type=Path, default=Path("runs/clinical"))
    parser.add_argument("--rank", type=at_least(1), default=20)
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[NO_NOISE, 4, 1])
    parser.add_argument(
        "--models", type=at_least(2), default=3, help="number of models of each kind"
    )
    parser.add_argument(
        "--half", choices=[*OTHER], default="report", help="half that models are fitted to"
    )
    given = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    with one_line_errors(parser):
        for folder in given.data:
            cohort = Cohort.load(folder)
            for row in rows(
                cohort, given.half, given.rank, given.epsilons, given.models, given.out
            ):
                found.append(row)
                Table("clinical", found).write(given.out)
    print(table(found))  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
