"""Compare patient mode with other methods, on the same splits and by the same measures.

    python -m simulation.studies.peers data/nhds data/diabetes --rank 20 --epsilon 1

Each method fits one model and has one row. LDA, NMF and spectral LDA use pooled patients and the
set of each patient's codes. All others fit combinations of codes. `simulation.studies.real_data`
defines the share of the fit and the factor match. A method's topics serve as factors. The AUC for
death uses the fourth roots of memberships. If a method has no memberships, they are fitted to its
factors. Coherence is the mean NPMI over pairs of a phenotype's leading codes, in the same patients
(not shuffled). With --half tune or report, it is also measured in the other half's patients, which
no fit has seen. Seconds are for the fit alone, on one core. The script writes table.json, table.csv
and table.md after each method. When rerun, it continues after the last finished method.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.evaluation.clinical import coherence
from dpfact_flower.evaluation.prediction import code_volume, evened
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.baselines.topics import Topics, lda, nmf, private_spectral_lda
from simulation.paper.report import Table, written_rows
from simulation.studies.halves import HALF, OTHER, half
from simulation.studies.real_data import Study, reference
from simulation.systems import naive, paper_mode, patient_mode, shuffled

_NONE, _PROVEN = "none", "proven, for a patient"
_REFERENCES = 3
_OTHER_SEED = 1000
"""Seed of a fit without noise that is not a reference."""
SYSTEMS: dict[str, tuple[str, str, Callable[[Study, float], Topics]]] = {
    "patient mode (ours)": (
        "each site", _PROVEN,
        lambda study, epsilon: Topics(patient_mode(study.cohort, study.rank, epsilon)),
    ),
    "the paper's scheme, made rigorous in the plainest way": (
        "each site", _PROVEN,
        lambda study, epsilon: Topics(naive(study.cohort, study.rank, epsilon)),
    ),
    "spectral LDA with noise": (
        "pooled", _PROVEN,
        lambda study, epsilon: private_spectral_lda(study.cohort, study.rank, epsilon),
    ),
    "NMF": ("pooled", _NONE, lambda study, _: nmf(study.cohort, study.rank)),
    "sparse CP without noise": (
        "pooled", _NONE,
        lambda study, _: Topics(reference(study.tensor, study.rank, _OTHER_SEED)),
    ),
    "the same, shuffled patients (chance)": (
        "pooled", _NONE,
        lambda study, _: Topics(reference(shuffled(study.tensor, 0), study.rank, 0)),
    ),
    "LDA": ("pooled", _NONE, lambda study, _: lda(study.cohort, study.rank)),
    "the paper's noise": (
        "each site", "claimed, for an entry",
        lambda study, epsilon: Topics(paper_mode(study.cohort, study.rank, epsilon)),
    ),
}  # fmt: skip
"""For each method: the location of the data, the guarantee, and a function that fits a model."""


def row(study: Study, name: str, epsilon: float, others: Cohort | None) -> dict[str, Any]:
    """Fit and measure one method. Also measure its coherence in the patients of `others`."""
    where, guarantee, fit = SYSTEMS[name]
    began = time.process_time()
    topics = fit(study, epsilon)
    seconds = time.process_time() - began
    share, match = study.beside_references(topics.factors)
    return {
        "data": study.cohort.name, "rank": study.rank, "method": name, "data are": where,
        "guarantee": guarantee, "epsilon": None if guarantee == _NONE else epsilon,
        "share": share, "match": match, "auc": _auc(study, topics),
        "coherence": _coherence(topics, study.cohort),
        "held out": _coherence(topics, others) if others else None, "seconds": seconds,
    }  # fmt: skip


def _coherence(topics: Topics, cohort: Cohort) -> float:
    found = coherence(topics.factors, [site.tensor for site in cohort.sites])
    return found.value if found else 0.0


def _auc(study: Study, topics: Topics) -> float | None:
    if topics.memberships is None:
        return study.auc(topics.factors)
    first = np.cumsum([site.tensor.n_patients for site in study.cohort.sites])[:-1]
    return study.area(np.split(evened(topics.memberships), first))


def plain(study: Study) -> list[dict[str, Any]]:
    """Return AUCs without phenotypes: from all codes, and from each patient's number of codes."""
    volume = study.area([code_volume(site.tensor) for site in study.cohort.sites])
    areas = {"all codes": study.auc_of_codes(), "code volume": volume}
    known = {"data": study.cohort.name, "rank": study.rank, "data are": "pooled"}
    return [{**known, "method": name, "guarantee": _NONE, "auc": a} for name, a in areas.items()]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per data set and method."""
    lines = [
        "| data, R | method | data are | guarantee | epsilon | share/match | AUC | coherence "
        "| held out | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        tie = f"{r['share']:.2f}/{r['match']:.2f}" if r.get("share") is not None else "-"
        epsilon = "-" if r.get("epsilon") is None else f"{r['epsilon']:g}"
        area = "-" if r["auc"] is None else f"{r['auc']:.3f}"
        pairs, held = (
            "-" if r.get(key) is None else f"{r[key]:.2f}" for key in ("coherence", "held out")
        )
        seconds = "-" if r.get("seconds") is None else f"{r['seconds']:.0f}"
        cells = r["method"], r["data are"], r["guarantee"], epsilon, tie, area, pairs
        lines.append(f"| {r['data']}, {r['rank']} | " + " | ".join((*cells, held, seconds)) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every method on every data set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders that dpfact data wrote")
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    parser.add_argument("--rank", type=at_least(1), default=20)
    parser.add_argument("--epsilon", type=read_epsilon, default=1.0)
    parser.add_argument("--half", **HALF)
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        run(given)


def run(given: argparse.Namespace) -> None:
    """Measure and write the rows that the folder lacks."""
    rows = written_rows(given.out)
    for folder in given.data:
        whole = Cohort.load(folder)
        cohort = half(whole, given.half)
        others = None if cohort is whole else half(whole, OTHER[given.half])
        done = {row["method"] for row in rows if row["data"] == cohort.name}
        if missing := [name for name in SYSTEMS if name not in done]:
            models = given.out / "models" / f"{cohort.name}-{given.rank}"
            study = Study(cohort, given.rank, _REFERENCES, models)
            rows += [] if done else plain(study)
            for name in missing:
                rows.append(row(study, name, given.epsilon, others))
                given.out.mkdir(parents=True, exist_ok=True)
                Table("table", rows).write(given.out)
                (given.out / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
    print(table(rows))  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
