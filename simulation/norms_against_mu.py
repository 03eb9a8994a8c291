"""Which site uses which phenotype, as the l2,1 weight mu grows: the paper's column-norm figure.

Runs the synthetic EHR once for each mu, in this process, and writes a table and a figure:

    python simulation/norms_against_mu.py --out runs/mu

Two of the twelve planted phenotypes exist at one site alone. For some mu, the other sites switch
the matching column of their patient factor off (exactly zero), and the site that has the phenotype
keeps it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpfact_flower.cp import match_columns
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.federate import federate
from dpfact_flower.run_folder import PHENOTYPES, SUMMARY, read_json, read_model, write_json

WEIGHTS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)


def run(mu: float, out: Path, seed: int) -> dict[str, Any]:
    """One run; column norms of every site for each planted phenotype, in planted order."""
    folder = federate(
        {
            "data": "synthetic:demo", "out": str(out / f"mu-{mu:g}"), "rank": 12, "rounds": 40,
            "mu": mu, "mu-from-round": 21, "privacy": "none", "seed": seed,
        }
    )  # fmt: skip
    cohort = Cohort.load(folder.with_name(f"{folder.name}.sites") / "data-demo")
    if cohort.truth is None:
        raise SystemExit("the synthetic EHR has no planted phenotypes")
    match = match_columns(read_model(folder)[0], cohort.truth.factors)
    norms = np.array(read_json(folder / PHENOTYPES)["usage"]["norms"])
    planted = np.zeros((len(cohort.sites), cohort.truth.usage.shape[1]))
    planted[:, match.truth] = norms[:, match.estimate]
    cosines = np.zeros(planted.shape[1])
    cosines[match.truth] = match.cosines
    return {
        "mu": mu,
        "fms": read_json(folder / SUMMARY)["fms"],
        "sites": [site.name for site in cohort.sites],
        "usage": cohort.truth.usage.tolist(),
        "cosines": cosines.tolist(),
        "norms": planted.tolist(),
    }


def rows(result: dict[str, Any]) -> list[str]:
    """Markdown rows for the phenotypes that exist at one site alone."""
    usage = np.array(result["usage"])
    lines = []
    for phenotype in np.flatnonzero(usage.sum(axis=0) == 1):
        norms = np.array(result["norms"])[:, phenotype]
        cells = [
            f"**{norm:.0f}**" if usage[site, phenotype] else f"{norm:.0f}"
            for site, norm in enumerate(norms)
        ]
        cosine = result["cosines"][phenotype]
        lines.append(
            f"| {result['mu']:g} | {result['fms']:.2f} | {phenotype + 1} | {cosine:.2f} | "
            + " | ".join(cells)
            + " |"
        )
    return lines


def figure(results: list[dict[str, Any]]) -> Figure:
    """Column norms of the one-site phenotypes against mu, a line a site."""
    usage = np.array(results[0]["usage"])
    local = np.flatnonzero(usage.sum(axis=0) == 1)
    drawn = Figure(figsize=(5 * len(local), 3.6), layout="constrained")
    axes = drawn.subplots(1, len(local), sharey=True, squeeze=False)[0]
    weights = [result["mu"] for result in results]
    for ax, phenotype in zip(axes, local, strict=True):
        norms: NDArray[Any] = np.array([np.array(r["norms"])[:, phenotype] for r in results])
        for site, name in enumerate(results[0]["sites"]):
            own = usage[site, phenotype]
            color, width = ("C3", 2.5) if own else ("0.5", 1.0)
            ax.plot(weights, norms[:, site], "o-", label=name, color=color, lw=width)
        ax.set(title=f"planted phenotype {phenotype + 1}", xlabel="mu", xscale="symlog")
        ax.legend(fontsize="small")
    axes[0].set_ylabel("norm of the column of A")
    return drawn


def main() -> None:
    """Run all weights; write norms.json, norms.md and norms.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/mu"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    results = [run(mu, given.out, given.seed) for mu in WEIGHTS]
    sites = results[0]["sites"]
    header = ["mu", "FMS", "phenotype", "cosine", *sites]
    table = [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *(row for result in results for row in rows(result)),
    ]
    write_json(given.out / "norms.json", results)
    (given.out / "norms.md").write_text("\n".join(table) + "\n", encoding="utf-8")
    figure(results).savefig(given.out / "norms.png", dpi=120)
    print("\n".join(table))  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
