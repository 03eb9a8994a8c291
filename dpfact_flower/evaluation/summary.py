"""The result of a run in one dictionary: what the server knows, and in simulation what it measures.

In simulation the sites' data and state are on the same machine, so errors, AUC and phenotype tables
are computed here, from files, after the rounds; nothing of it was in a message. In a deployment
those keys are null: only the sites could fill them, and they keep them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.coordinator import Coordinator
from dpfact_flower.cp import CPModel, factor_match_score
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import StateError
from dpfact_flower.evaluation.phenotypes import phenotype_table, site_usage, top_codes
from dpfact_flower.evaluation.prediction import predict_mortality
from dpfact_flower.privacy import NO_CLAIM, Guarantee, PaperPlan, paper_rho
from dpfact_flower.run_folder import SUMMARY, read_json
from dpfact_flower.state import SiteStore

PAPER_BYTES_PER_SECOND = 15e6
"""The paper's assumed transfer rate, 15 MB/s."""


def summarise(
    coordinator: Coordinator,
    vocabularies: Sequence[Vocabulary],
    cohort: Cohort | None,
    sites_folder: Path,
    seconds: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contents of ``summary.json`` and ``phenotypes.json``.

    Parameters
    ----------
    coordinator : Coordinator
        After the last round.
    vocabularies : sequence of Vocabulary
    cohort : Cohort or None
        The simulation's data; None in a deployment.
    sites_folder : path
        Where the simulated sites keep their state.
    seconds : float
        Wall-clock time of the rounds.
    """
    rank = coordinator.solver.rank
    records = coordinator.records
    total = sum(r.bytes_down + r.bytes_up for r in records)
    summary: dict[str, Any] = {
        "name": cohort.name if cohort else coordinator.run.job,
        "sites": len({site for record in records for site in record.sites}),
        "rounds": sum(record.updated for record in records),
        "rank": rank,
        "solver": coordinator.solver.solver,
        "scale": coordinator.solver.scale,
        **_privacy(coordinator),
        "rmse": None,
        "fit": None,
        "fms": None,
        "auc": None,
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
        "seconds": seconds,
        "transfer_seconds_at_15_MB_s": total / PAPER_BYTES_PER_SECOND,
        "failures": sum(len(record.failures) for record in records),
    }
    if cohort is None:
        return summary, {"codes": _global_codes(coordinator, vocabularies)}
    stores = [
        SiteStore(sites_folder, site.name, coordinator.run.job, site.tensor.fingerprint())
        for site in cohort.sites
    ]
    patients = [_memberships(store) for store in stores]
    prediction = predict_mortality(patients, cohort.sites)
    auc = prediction.overall.memberships
    table = _phenotypes(coordinator, cohort, patients)
    return (
        summary
        | _errors(stores, cohort)
        | {
            "fms": _match(coordinator, cohort),
            "auc": auc.mean if auc else None,
            "prediction": prediction.to_dict(),
        },
        table,
    )


def _privacy(coordinator: Coordinator) -> dict[str, Any]:
    """Mode, and what it claims for the site that was asked most often."""
    mode = coordinator.privacy.privacy
    if mode == "none":
        return {"privacy": mode, "epsilon": None, "delta": None, "accountant": None,
                "claim": NO_CLAIM}  # fmt: skip
    per_site = _guarantees(coordinator)
    # Sites hold different patients: the run costs a patient what his own site spent.
    worst = max(per_site.values(), key=lambda g: g.rho, default=None)
    if worst is None:
        return {"privacy": mode, "epsilon": 0.0, "delta": coordinator.privacy.delta,
                "accountant": None, "claim": NO_CLAIM}  # fmt: skip
    return {
        "privacy": mode,
        **worst.to_dict(),
        "per_site": {site: g.to_dict() for site, g in per_site.items()},
    }


def _guarantees(coordinator: Coordinator) -> dict[str, Guarantee]:
    """Per site, what its releases that reached the server cost by the plan."""
    rounds = Counter(site for record in coordinator.records for site in record.sites)
    modes = len(coordinator.factors)
    rho = paper_rho(coordinator.privacy, coordinator.run.rounds, modes)
    delta, seeded = coordinator.privacy.delta, coordinator.privacy.noise_seed >= 0
    return {
        site: PaperPlan(rho, delta, count, modes).guarantee(seeded=seeded)
        for site, count in rounds.items()
    }


def _memberships(store: SiteStore) -> NDArray[np.float64]:
    """A site's patient factor in one unit for all sites: that of feature columns of norm 1."""
    answered = store.load()
    if answered is None:
        raise StateError(f"{store.folder}: this site finished no round of the run")
    model = CPModel.of(*answered.state.factors)
    norms = [np.linalg.norm(factor, axis=0) for factor in model.features]
    return np.asarray(model.factors[0] * np.prod(norms, axis=0), np.float64)


def _errors(stores: Sequence[SiteStore], cohort: Cohort) -> dict[str, Any]:
    """Errors of the sites' own models after each round: the paper's measure, over all sites."""
    histories = [{m.round: m for m in store.history()} for store in stores]
    rounds = sorted(set.intersection(*(set(history) for history in histories)))
    pooled = {n: reduce(add, (history[n].error for history in histories)) for n in rounds}
    last = pooled[rounds[-1]]
    return {
        "rmse": last.rmse.all_cells,
        "rmse_nonzeros": last.rmse.nonzeros,
        "rmse_authors": last.rmse.authors,
        "fit": last.fit,
        "error_by_round": [
            {"round": n, **asdict(error.rmse), "fit": error.fit} for n, error in pooled.items()
        ],
        "solver_seconds": sum(m.seconds for history in histories for m in history.values()),
        "per_site_data": [
            {
                "site": site.name,
                "patients": site.tensor.n_patients,
                "nonzeros": site.tensor.nnz,
                "fit": history[rounds[-1]].error.fit,
            }
            for site, history in zip(cohort.sites, histories, strict=True)
        ],
    }


def _match(coordinator: Coordinator, cohort: Cohort) -> float | None:
    if cohort.truth is None:
        return None
    return factor_match_score(coordinator.factors, cohort.truth.factors)


def _phenotypes(
    coordinator: Coordinator, cohort: Cohort, patients: Sequence[NDArray[np.float64]]
) -> dict[str, Any]:
    """Tables over all sites' patients, around the global feature factors."""
    labels = [site.labels for site in cohort.sites if site.labels is not None]
    table = phenotype_table(
        CPModel((np.concatenate(patients), *map(_unit_columns, coordinator.factors))),
        cohort.vocabularies,
        labels=np.concatenate(labels) if len(labels) == len(cohort.sites) else None,
    )
    usage = site_usage(patients, [site.name for site in cohort.sites])
    return {"table": table.to_dict(), "usage": usage.to_dict()}


def _global_codes(
    coordinator: Coordinator, vocabularies: Sequence[Vocabulary]
) -> dict[str, list[list[dict[str, Any]]]]:
    """Top codes of every phenotype: what a server without patients can say."""
    return {
        vocabulary.name: [[asdict(code) for code in codes] for codes in top_codes(vocabulary, f)]
        for vocabulary, f in zip(vocabularies, coordinator.factors, strict=True)
    }


def _unit_columns(factor: NDArray[np.float32]) -> NDArray[np.float64]:
    norms = np.linalg.norm(factor.astype(np.float64), axis=0)
    return factor / np.where(norms > 0, norms, 1)


def comparison(folders: Sequence[Path]) -> str:
    """Markdown table of several simulated runs.

    Raises
    ------
    DataError
        If a folder holds no finished run.
    """
    header = (
        "data", "sites", "patients", "non-zeros", "R", "rounds", "fit", "RMSE all cells",
        "RMSE non-zeros", "AUC", "AUC raw codes", "AUC volume", "FMS", "MB down", "MB up",
        "seconds", "of them solver",
    )  # fmt: skip
    rows = [header, ("---",) * len(header)]
    rows += [_row(read_json(folder / SUMMARY)) for folder in folders]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(summary: dict[str, Any]) -> tuple[str, ...]:
    sites = summary.get("per_site_data", [])
    overall = summary.get("prediction", {}).get("overall", {})

    def auc(kind: str) -> str:
        found = overall.get(kind)
        return f"{found['mean']:.3f} ± {found['spread']:.3f}" if found else "-"

    def number(key: str, digits: str) -> str:
        return "-" if summary.get(key) is None else format(summary[key], digits)

    return (
        summary["name"], str(summary["sites"]),
        f"{sum(site['patients'] for site in sites):,}" if sites else "-",
        f"{sum(site['nonzeros'] for site in sites):,}" if sites else "-",
        str(summary["rank"]), str(summary["rounds"]),
        number("fit", ".3f"), number("rmse", ".5f"), number("rmse_nonzeros", ".4f"),
        auc("memberships"), auc("raw_codes"), auc("volume"), number("fms", ".2f"),
        f"{summary['bytes_down'] / 1e6:.1f}", f"{summary['bytes_up'] / 1e6:.1f}",
        f"{summary['seconds']:.0f}", number("solver_seconds", ".1f"),
    )  # fmt: skip
