"""The result of a run in one dictionary: what the server knows, and in simulation what it measures.

In a deployment, what only the sites can measure is null. In simulation `measured` fills it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpfact_flower.coordinator import Coordinator
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.evaluation.measured import measure, site_stores
from dpfact_flower.evaluation.phenotypes import top_codes
from dpfact_flower.privacy import NO_CLAIM, Guarantee, PaperPlan, account, paper_rho

PAPER_BYTES_PER_SECOND = 15e6
"""The paper's assumed transfer rate, 15 MB/s."""


def summarise(
    coordinator: Coordinator,
    vocabularies: Sequence[Vocabulary],
    cohort: Cohort | None,
    sites_folder: Path,
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
        **_privacy(coordinator, cohort, sites_folder),
        "rmse": None,
        "fit": None,
        "fms": None,
        "auc": None,
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
        "seconds": sum(record.seconds for record in records),
        "transfer_seconds_at_15_MB_s": total / PAPER_BYTES_PER_SECOND,
        "failures": sum(len(record.failures) for record in records),
    }
    if cohort is None:
        return summary, {"codes": _global_codes(coordinator, vocabularies)}
    measured, tables = measure(coordinator, cohort, sites_folder)
    return summary | measured, tables


def _privacy(coordinator: Coordinator, cohort: Cohort | None, sites_folder: Path) -> dict[str, Any]:
    """Mode, its claim, and what the site that spent most has spent.

    Sites hold different patients: the run costs a patient what his own site spent. In simulation
    the sites' own records are read. A deployed server counts every round that it asked a site for,
    whether the reply came in time or not: the site may have computed it.
    """
    mode = coordinator.privacy.privacy
    if mode == "none":
        return {"privacy": mode, "epsilon": None, "delta": None, "accountant": None,
                "claim": NO_CLAIM}  # fmt: skip
    spent = (
        _planned(coordinator) if cohort is None else _recorded(coordinator, cohort, sites_folder)
    )
    worst = max(spent.values(), key=lambda guarantee: guarantee.rho)
    return {
        "privacy": mode,
        **worst.to_dict(),
        "per_site": {site: guarantee.to_dict() for site, guarantee in spent.items()},
    }


def _recorded(coordinator: Coordinator, cohort: Cohort, sites_folder: Path) -> dict[str, Guarantee]:
    """Cost by the sites' own records of this job."""
    found = {}
    for store, site in zip(
        site_stores(coordinator, cohort, sites_folder), cohort.sites, strict=True
    ):
        answered = store.load()
        if answered is not None and answered.state.events:
            found[site.name] = account(answered.state.events, coordinator.privacy.delta)
    return found


def _planned(coordinator: Coordinator) -> dict[str, Guarantee]:
    """Cost of all rounds asked, for every site that was heard of."""
    modes, rounds = len(coordinator.factors), len(coordinator.records)
    rho = paper_rho(coordinator.privacy, coordinator.run.rounds, modes)
    delta, seeded = coordinator.privacy.delta, coordinator.privacy.noise_seed >= 0
    sites = sorted({site for record in coordinator.records for site in record.sites})
    plan = PaperPlan(rho, delta, rounds, modes).guarantee(seeded=seeded)
    return dict.fromkeys(sites, plan)


def _global_codes(
    coordinator: Coordinator, vocabularies: Sequence[Vocabulary]
) -> dict[str, list[list[dict[str, Any]]]]:
    """Top codes of every phenotype: what a server without patients can say."""
    return {
        vocabulary.name: [[asdict(code) for code in codes] for codes in top_codes(vocabulary, f)]
        for vocabulary, f in zip(vocabularies, coordinator.factors, strict=True)
    }
