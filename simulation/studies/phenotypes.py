"""Plot how well three private systems recover planted phenotypes at each epsilon.

    python -m simulation.studies.phenotypes --out runs/private

The systems are patient mode, DPFact's own scheme, and a naive rigorous version of that scheme
(`simulation.systems.naive`). DPFact claims that its epsilon protects one entry, but this is not
proven. Phenotypes are planted in the synthetic EHR (`--preset`). Each seed gives different data and
different public initial factors. Noise comes from the operating system, so no two runs agree in all
digits. The script writes table.csv, table.json, table.md and the figure as PNG and SVG after each
model. A new run computes only what is missing, so systems can be added later.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.progress import track

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.cp import factor_match_score
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.paper.measures import shared_error
from simulation.paper.report import Table, written_rows
from simulation.systems import NO_NOISE, naive, paper_mode, patient_mode

SYSTEMS: dict[str, Callable[..., Factors]] = {
    "patient mode": patient_mode,
    "paper mode (claimed, entry-level, not proven)": paper_mode,
    "naive rigorous scheme": naive,
}


def measure(system: str, cohort: Cohort, rank: int, epsilon: float, seed: int) -> dict[str, Any]:
    """Return a model's match with the planted phenotypes, and the share of the data it explains."""
    if cohort.truth is None:
        raise SystemExit("the data has no planted phenotypes")
    began = time.perf_counter()
    factors = SYSTEMS[system](cohort, rank, epsilon, seed=seed)
    seconds = time.perf_counter() - began
    return {
        "system": system,
        "epsilon": _shown(epsilon),
        "seed": seed,
        "fms": factor_match_score(factors, cohort.truth.factors),
        "fit": shared_error(cohort, factors).fit,
        "seconds": seconds,
    }


def _shown(epsilon: float) -> float | str:
    return "inf" if epsilon >= NO_NOISE else epsilon


def summarised(rows: list[dict[str, Any]]) -> dict[tuple[str, Any], tuple[float, float]]:
    """Return the mean and spread of the factor match over the seeds, by system and epsilon."""
    found: dict[tuple[str, Any], list[float]] = {}
    for row in rows:
        found.setdefault((row["system"], row["epsilon"]), []).append(row["fms"])
    return {
        place: (float(np.mean(values)), float(np.std(values))) for place, values in found.items()
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per system and one column per epsilon."""
    means = summarised(rows)
    epsilons = list(dict.fromkeys(row["epsilon"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = [
        "| epsilon | " + " | ".join(str(epsilon) for epsilon in epsilons) + " |",
        "|---" * (len(epsilons) + 1) + "|",
    ]
    for system in systems:
        cells = [
            "{:.2f} ± {:.2f}".format(*means[system, epsilon]) if (system, epsilon) in means else "-"
            for epsilon in epsilons
        ]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Plot factor match against epsilon, with one line per system."""
    drawn = Figure(figsize=(6.4, 4), layout="constrained")
    axes = drawn.subplots()
    means = summarised(rows)
    finite = sorted({row["epsilon"] for row in rows if row["epsilon"] != "inf"})
    for number, system in enumerate(dict.fromkeys(row["system"] for row in rows)):
        measured = [epsilon for epsilon in finite if (system, epsilon) in means]
        y = [means[system, epsilon][0] for epsilon in measured]
        spread = [means[system, epsilon][1] for epsilon in measured]
        axes.errorbar(measured, y, spread, marker="o", capsize=3, label=system, color=f"C{number}")
        if (system, "inf") in means:
            axes.axhline(means[system, "inf"][0], ls=":", lw=1, color=f"C{number}")
    if finite:
        axes.set_xscale("log", base=2)
        axes.set_xticks(finite, [f"{epsilon:g}" for epsilon in finite])
    axes.set(xlabel="epsilon for the whole run", ylabel="factor match score", ylim=(0, 1))
    axes.legend(fontsize="small", title="dotted: without noise", title_fontsize="small")
    return drawn


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """Write the table as CSV, JSON and Markdown, and the figure as PNG and SVG."""
    out.mkdir(parents=True, exist_ok=True)
    Table("table", rows).write(out)
    (out / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
    drawn = figure(rows)
    for kind in ("png", "svg"):
        drawn.savefig(out / f"fms_against_epsilon.{kind}", dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all systems at all epsilons and seeds, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/private"))
    parser.add_argument("--preset", default="paper-mimic")
    parser.add_argument("--rank", type=at_least(1), default=50)
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[NO_NOISE, 8, 4, 2, 1])
    parser.add_argument("--seeds", type=at_least(1), default=3, help="number of seeds")
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS], default=[*SYSTEMS])
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        run(given)


def run(given: argparse.Namespace) -> None:
    """Run the models that the folder lacks, and write their results."""
    rows = written_rows(given.out)
    done = {(row["system"], row["epsilon"], row["seed"]) for row in rows}
    jobs = [
        (system, epsilon, seed)
        for seed in range(given.seeds)
        for system in given.systems
        for epsilon in given.epsilons
        if (system, _shown(epsilon), seed) not in done
    ]
    seeds = {seed for _, _, seed in jobs}
    cohorts = {seed: synthetic(preset(given.preset, seed=seed)) for seed in seeds}
    for system, epsilon, seed in track(jobs, description="models"):
        rows.append(measure(system, cohorts[seed], given.rank, epsilon, seed))
        rows.sort(key=lambda row: [*SYSTEMS].index(row["system"]))
        write(rows, given.out)
    print(table(rows))  # noqa: T201 - the table is what this script is for
    print(f"{sum(row['seconds'] for row in rows):.0f} s of fitting")  # noqa: T201


if __name__ == "__main__":
    main()
