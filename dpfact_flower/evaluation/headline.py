"""Summary of a finished run in a few lines for a terminal: results, privacy and traffic."""

from __future__ import annotations

from dpfact_flower.evaluation.formatting import duration, number, outcome, percent, size
from dpfact_flower.evaluation.replication import LIKELY, certainty
from dpfact_flower.evaluation.summary import GroupAUC, Summary
from dpfact_flower.privacy import price_of_replacing, rounded_up
from dpfact_flower.privacy.guarantee import about_rows

_WAYS_OUT = {
    "none": "start = cooccurrence, more rounds, fewer or more frequent codes, or a lower rank",
    "paper": "a larger epsilon, or privacy = patient; the paper's noise seldom leaves anything",
    "patient": "more patients, fewer codes (codes), a lower rank or a larger epsilon; "
    "dpfact plan says how much of each",
}


def headline(summary: Summary) -> list[tuple[str, str]]:
    """Return the label and text of each line. Lines without a value are left out."""
    s, sent, errors = summary, summary.exchange, summary.errors
    time, failures = duration(sent.seconds), ""
    if errors:
        time += f" of rounds, {duration(errors.solver_seconds)} of them solver"
    missing = s.measured.sites_without_a_round if s.measured else ()
    if sent.failures or missing:
        never = f"; no round of {', '.join(missing)}" if missing else ""
        failures = f"{sent.failures} failed replies{never}"
    lines = {
        "run": f"{s.name}: {s.sites} sites, {s.rounds} rounds, {s.rank} phenotypes",
        "privacy": _promise(summary),
        **_measured(summary),
        "certainty": _certainty(summary),
        "sent": f"{size(sent.bytes_up)} up, {size(sent.bytes_down)} down (so many rounds of the "
        f"paper's scheme {size(sent.bytes_paper)}, of TRIP {size(sent.bytes_trip)})",
        "time": time,
        "failures": failures,
    }
    return [(label, text) for label, text in lines.items() if text]


def uninformative_message(summary: Summary) -> str:
    """Return a warning with remedies if the model has learned nothing, else an empty text."""
    measured = summary.measured
    if measured is None or not measured.is_uninformative:
        return ""
    return (
        f"the shared phenotypes explain {percent(measured.fit_shared)} of the data, no more than "
        f"how frequent each code is ({percent(measured.fit_frequencies)}): they are noise, so no "
        f"prevalence, odds or AUC is shown. What can help: {_WAYS_OUT[summary.privacy]}"
    )


def _promise(summary: Summary) -> str:
    """Return epsilon with its claim. Epsilon is never rounded down."""
    spent = summary.spent
    if spent is None:
        return summary.claim
    replacing = about_rows(price_of_replacing(spent.replacing), summary.row_unit)
    alone = "" if spent.alone is None else f"; if all others collude: {rounded_up(spent.alone)}"
    return (
        f"epsilon {rounded_up(spent.epsilon)} at delta {spent.delta:g} "
        f"({spent.accountant}{replacing}) [{spent.claim}]{alone}"
    )


def _measured(summary: Summary) -> dict[str, str]:
    measured, lines = summary.measured, {}
    if measured is None:
        return {}
    if measured.errors:
        errors = measured.errors
        lines["fit"] = (
            f"{percent(errors.fit)} of the data, RMSE {number(errors.rmse)} over all cells, "
            f"{number(errors.rmse_nonzeros)} over non-zeros"
        )
    # This fit is comparable with systems whose sites share all factors except the patients'.
    lines["shared fit"] = (
        f"{percent(measured.fit_shared)} by the shared phenotypes alone, {summary.row_unit}s "
        f"refitted; {percent(measured.fit_frequencies)} by code frequencies"
    )
    lines["nothing"] = uninformative_message(summary)
    if measured.fms is not None:
        lines["factor match"] = f"{measured.fms:.3f} with the planted phenotypes, of 1"
    aucs = {outcome(label): _auc(each.overall) for label, each in measured.predictions.items()}
    return lines | aucs


def _auc(overall: GroupAUC) -> str:
    if not (overall.memberships and overall.raw_codes and overall.volume):
        return ""
    auc, spread = overall.memberships.mean, overall.memberships.spread
    return (
        f"AUC {auc:.3f} ± {spread:.3f} by phenotypes, {overall.raw_codes.mean:.3f} by raw codes, "
        f"{overall.volume.mean:.3f} by volume"
    )


def _certainty(summary: Summary) -> str:
    chances = summary.false_discovery
    if not chances or uninformative_message(summary):
        return ""
    likely = sum(certainty((), chance) == LIKELY for chance in chances)
    return f"{likely} of {len(chances)} phenotypes are likely real, by this run's own noise"
