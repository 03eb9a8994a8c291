"""A finished run in a few lines, for a terminal: what was learned, promised and sent."""

from __future__ import annotations

from dpfact_flower.evaluation.nothing import nothing_learned
from dpfact_flower.evaluation.summary import Errors, GroupAUC, Summary
from dpfact_flower.evaluation.words import duration, number, outcome, percent, size
from dpfact_flower.privacy import price_of_replacing, rounded_up


def headline(summary: Summary) -> list[tuple[str, str]]:
    """Label and text of each line; what only the sites of a deployment could measure is left out.

    Parameters
    ----------
    summary : Summary
        As `dpfact_flower.evaluation.run_folder.read_summary` gives it.
    """
    s = summary
    lines = {
        "run": f"{s.name}: {s.sites} sites, {s.rounds} rounds, {s.rank} phenotypes",
        "privacy": _promise(summary),
        "fit": _fit(summary.errors),
        "shared fit": _shared_fit(summary),
        "nothing": nothing_learned(summary),
        "factor match": _match(summary),
        **_outcomes(summary),
        "sent": _traffic(summary),
        "time": _time(summary),
        "failures": _failures(summary),
    }
    return [(label, text) for label, text in lines.items() if text]


def _promise(summary: Summary) -> str:
    """Never an epsilon without its claim, and never one that is rounded down."""
    spent = summary.spent
    if spent is None:
        return summary.claim
    return (
        f"epsilon {rounded_up(spent.epsilon)} at delta {spent.delta:g} "
        f"({spent.accountant}{price_of_replacing(spent.replacing)}) [{spent.claim}]"
    )


def _fit(errors: Errors | None) -> str:
    if errors is None:
        return ""
    return (
        f"{percent(errors.fit)} of the data, RMSE {number(errors.rmse)} over all cells, "
        f"{number(errors.rmse_nonzeros)} over non-zeros"
    )


def _shared_fit(summary: Summary) -> str:
    """What can be compared with systems whose sites share all but the patients' factors."""
    measured = summary.measured
    if measured is None or measured.fit_shared is None or measured.fit_frequencies is None:
        return ""
    return (
        f"{percent(measured.fit_shared)} by the shared phenotypes alone, patients refitted; "
        f"{percent(measured.fit_frequencies)} by code frequencies"
    )


def _match(summary: Summary) -> str:
    found = summary.measured.fms if summary.measured else None
    return "" if found is None else f"{found:.3f} with the planted phenotypes, of 1"


def _outcomes(summary: Summary) -> dict[str, str]:
    """AUC of each label, beside what predicts it without phenotypes."""
    found = summary.measured.predictions if summary.measured else {}
    return {outcome(label): _auc(prediction.overall) for label, prediction in found.items()}


def _auc(overall: GroupAUC) -> str:
    if not (overall.memberships and overall.raw_codes and overall.volume):
        return ""
    auc, spread = overall.memberships.mean, overall.memberships.spread
    return (
        f"AUC {auc:.3f} ± {spread:.3f} by phenotypes, {overall.raw_codes.mean:.3f} by raw codes, "
        f"{overall.volume.mean:.3f} by volume"
    )


def _traffic(summary: Summary) -> str:
    sent = summary.exchange
    return (
        f"{size(sent.bytes_up)} up, {size(sent.bytes_down)} down (so many rounds of the paper's "
        f"scheme {size(sent.bytes_paper)}, of TRIP {size(sent.bytes_trip)})"
    )


def _time(summary: Summary) -> str:
    text, errors = duration(summary.exchange.seconds), summary.errors
    if errors is None:
        return text
    return f"{text} of rounds, {duration(errors.solver_seconds)} of them solver"


def _failures(summary: Summary) -> str:
    failures = summary.exchange.failures
    missing = summary.measured.sites_without_a_round if summary.measured else ()
    never = f"; no round of {', '.join(missing)}" if missing else ""
    return f"{failures} failed replies{never}" if failures or never else ""
