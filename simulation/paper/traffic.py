"""Measure bytes on the wire, for the paper's two tables of communication cost."""

from typing import Any

from simulation.paper import published
from simulation.paper.convergence import needed, rounds_text, runs
from simulation.paper.datasets import DELTA, dataset
from simulation.paper.jobs import Job, Results
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table
from simulation.paper.systems import TRAFFIC
from simulation.paper.verdicts import Verdict, answer, held

_SITES = {"paper-icu": 6, "paper-cms": 5, "paper-synthetic": 5}
_COUNTS = (1, 5, 10)
_BYTES_PER_SECOND = 15e6  # the paper assumes 15 MB/s
_LINEAR = 0.01
"""Largest deviation that counts as proportional growth, and largest saving that counts as none."""
_PAPER_SECONDS = tuple(f"paper: s, T = {count}" for count in _COUNTS)
_TITLES = {
    "dpfact": "DPFact", "patient": "DPFact, patient mode (ours)", "trip": "TRIP",
    "trip-lean": "TRIP, multipliers kept at the sites",
}  # fmt: skip


def _job(data: str, system: str, sites: int) -> Job:
    noisy = system == "patient"
    return Job(
        data, system, published.RANK, rounds=2, sites=sites,
        epsilon=dataset(data).epsilon if noisy else 0.0, delta=DELTA if noisy else 0.0,
    )  # fmt: skip


def jobs(plan: Plan) -> list[Job]:
    """Return a job for every system at every size.

    Patient mode takes minutes here. Patient mode runs only with the data set's own number of sites,
    and not in the quick plan.
    """
    return [
        _job(data, system, sites)
        for data, own in _SITES.items()
        for system in TRAFFIC
        for sites in ((own, *_COUNTS) if system != "patient" else (own,))
        if system != "patient" or plan.name != "quick"
    ]


def section(plan: Plan, results: Results) -> Section:
    """Return both tables and the verdicts on the paper's two claims."""
    by_system = [_row(data, plan, results) for data in _SITES]
    rows = [row for group in by_system for row in group]
    sites = [_by_sites(data, results) for data in _SITES]
    return Section(
        "Traffic",
        "Traffic is the size of all sites' Flower messages in both directions, at rank 50. TRIP's "
        "sites also send one Lagrange multiplier per factor value. The multipliers sum to zero "
        "over the sites, so TRIP need not send them (`tests/simulation/test_baselines.py`).",
        [],
        [
            Table(
                "traffic", rows,
                {"MB a round": 3, "of TRIP's": 3, "paper: of TRIP's": 3, "MB in all": 1,
                 "seconds at 15 MB/s": 2, "paper: seconds": 2},
                "traffic in one round, and in all rounds until convergence",
            ),
            Table(
                "traffic_by_sites", sites, {"linear within": 5, **dict.fromkeys(_PAPER_SECONDS, 2)},
                "traffic with 1, 5 and 10 sites",
            ),
        ],
        _verdicts(rows, sites),
    )  # fmt: skip


def _per_round(results: Results, job: Job) -> float:
    rounds = results[job].values["rounds"]
    return float(sum(rounds[-1].values()))


def _row(data: str, plan: Plan, results: Results) -> list[dict[str, Any]]:
    sites = _SITES[data]
    wanted = {s: job for s in TRAFFIC if (job := _job(data, s, sites)) in results}
    if "trip" not in wanted:
        return []
    trip = _per_round(results, wanted["trip"])
    paper = published.TRAFFIC[data]
    rows = []
    for system, job in wanted.items():
        rounds, converged = _rounds_of(data, system, plan, results)
        size = total = None
        if system == "patient":
            every = results[job].values["rounds"]
            rounds, converged = len(every), True
            total = float(sum(sum(r.values()) for r in every))
        else:
            size = _per_round(results, job)
            if rounds is not None and converged:
                total = size * rounds
        rows.append(
            {
                "size of": dataset(data).title,
                "system": _TITLES[system],
                "sites": sites,
                "MB a round": None if size is None else size / 1e6,
                "of TRIP's": None if size is None else size / trip,
                "paper: of TRIP's": paper["dpfact"] / paper["trip"] if system == "dpfact" else None,
                "rounds": None if rounds is None else rounds_text(rounds, converged),
                "MB in all": None if total is None else total / 1e6,
                "seconds at 15 MB/s": None if total is None else total / _BYTES_PER_SECOND,
                "paper: seconds": paper.get(system),
            }
        )
    return rows


def _rounds_of(data: str, system: str, plan: Plan, results: Results) -> tuple[int | None, bool]:
    """Return the number of rounds to convergence if known, and whether the fits converged."""
    fit = {"dpfact": "exact", "trip": "trip", "trip-lean": "trip"}.get(system)
    if fit is None or data not in plan.convergence:
        return None, False
    found = [results[job] for job in runs(plan, dataset(data), fit) if job in results]
    return needed(found) if found else (None, False)


def _by_sites(data: str, results: Results) -> dict[str, Any]:
    wanted = [_job(data, "dpfact", count) for count in _COUNTS]
    row: dict[str, Any] = {"size of": dataset(data).title}
    row |= dict.fromkeys([*(f"MB, T = {n}" for n in _COUNTS), "linear within"])
    if results.complete(wanted):
        sizes = [_per_round(results, job) for job in wanted]
        row |= {f"MB, T = {n}": s / 1e6 for n, s in zip(_COUNTS, sizes, strict=True)}
        off = [abs(s / (n * sizes[0]) - 1) for n, s in zip(_COUNTS, sizes, strict=True)]
        row["linear within"] = max(off)
    seconds = [published.TRAFFIC_BY_SITES[data][count] for count in _COUNTS]
    return row | dict(zip(_PAPER_SECONDS, seconds, strict=True))


def _verdicts(rows: list[dict[str, Any]], sites: list[dict[str, Any]]) -> list[Verdict]:
    linear = [row["linear within"] for row in sites if row["linear within"] is not None]
    return [
        Verdict(
            "DPFact's traffic is 20 to 47 % below TRIP's",
            answer(held(0.2 <= 1 - ratio <= 0.47) for ratio in _ratios(rows, "dpfact")),
            f"Each size is a case. A round of DPFact sends {_below(rows, 'dpfact')} less than a "
            "round of TRIP as published. A round of TRIP without multipliers sends "
            f"{_below(rows, 'trip-lean')} less. {_lean(rows)}{_in_all(rows)}".strip(),
        ),
        Verdict(
            "Traffic grows in proportion to the number of sites",
            answer(held(value < _LINEAR) for value in linear),
            "Each size is a case. For up to 10 sites, traffic deviates from proportional growth "
            f"by at most {100 * max(linear, default=float('nan')):.2f} %.",
        ),
    ]


def _ratios(rows: list[dict[str, Any]], system: str) -> list[float]:
    """Return the bytes of a round as a share of TRIP's bytes, for each size."""
    return [row["of TRIP's"] for row in rows if row["system"] == _TITLES[system]]


def _below(rows: list[dict[str, Any]], system: str) -> str:
    shares = "/".join(f"{100 * (1 - ratio):.1f}" for ratio in _ratios(rows, system))
    return f"{shares or '-'} %"


def _lean(rows: list[dict[str, Any]]) -> str:
    """Return a sentence if TRIP without multipliers sends as little as DPFact."""
    pairs = zip(_ratios(rows, "dpfact"), _ratios(rows, "trip-lean"), strict=False)
    left = [lean - own for own, lean in pairs]
    if not left or max(left) > _LINEAR:
        return ""
    return "The saving therefore comes entirely from the multipliers. "


def _in_all(rows: list[dict[str, Any]]) -> str:
    """Describe how much less DPFact sends than TRIP until both have converged."""
    found = {(row["size of"], row["system"]): row["MB in all"] for row in rows}
    told = [
        f"{title} {100 * (1 - own / trip):.0f} %"
        for title in dict.fromkeys(row["size of"] for row in rows)
        if (own := found.get((title, _TITLES["dpfact"]))) is not None
        and (trip := found.get((title, _TITLES["trip"]))) is not None
    ]
    return (
        "Until both have converged, DPFact sends less than TRIP by "
        + ", ".join(told)
        + " (below zero: more)."
        if told
        else ""
    )
