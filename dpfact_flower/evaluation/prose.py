"""Describe a run in words: phenotype titles, sentences for clinicians, and lines for a terminal.

Titles such as ``Stroke with hypertension`` are made from the codes alone, so a model always gets
the same titles. If a user has named a phenotype, that name replaces the title.
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dpfact_flower.errors import plural
from dpfact_flower.estimation.certainty import EVEN
from dpfact_flower.evaluation import tables
from dpfact_flower.evaluation.membership import LEADING
from dpfact_flower.evaluation.model import CodeRow, GlobalModel, unique
from dpfact_flower.evaluation.page import counted, duration, number, outcome, percent, ranges, size
from dpfact_flower.evaluation.run_folder import Review
from dpfact_flower.evaluation.summary import GroupAUC, Summary
from dpfact_flower.privacy import rounded_up
from dpfact_flower.privacy.guarantee import Figure
from dpfact_flower.privacy.release import Neighbours, Unit, about_rows

_LAMBDA = 0.6
"""Weight of a code's share relative to its lift, as Sievert and Shirley chose for pyLDAvis."""
_NAMED = 2
"""A title names at most this many codes from its first mode, and one from each other mode."""
_COMMON, _ENOUGH = 1 / 3, 1 / 2
"""A title omits leading codes that more than `_COMMON` of the phenotypes share. A title also omits
a mode in which all other leading codes weigh less than `_ENOUGH` of the largest weight."""
TREATMENTS = re.compile(r"proc|cpt|hcpcs|drug|med|treat|lab|atc", re.IGNORECASE)
"""Pattern for the names of modes with treatments rather than diagnoses."""
_FILLERS = re.compile(
    r"\b(NEC/NOS|NOS|NEC|not otherwise specified|not elsewhere classified)\b|"
    r"(?<!organism)[ ,]+(or )?(unspecified( (site|type|cause|chronic))?|unsp\.?|so stated)$|"
    r"^(other )?(and )?unspecified |^other (and ill-defined |forms of )",
    re.IGNORECASE,
)
_CODES = 4
"""A sentence names at most this many codes per mode."""
_OFTEN, _MORE = 0.2, 1.5
"""A code is characteristic of a phenotype if its frequency among the phenotype's patients is at
least `_OFTEN`, and at least `_MORE` times its frequency among all patients. A hidden frequency
among all patients counts as 0, because then few other patients usually have the code."""
_LONGEST_CODE = 10
_SEARCH_WORDS = Path(__file__).parent / "templates" / "search_words.toml"


def _relevance(row: CodeRow) -> float:
    """Return the relevance of a code to its phenotype (Sievert and Shirley, 2014, eq. 1)."""
    return _LAMBDA * math.log(abs(row.share)) + (1 - _LAMBDA) * math.log(abs(row.lift))


Rows = Mapping[str, Sequence[CodeRow]]
"""A phenotype's codes by mode, largest share first."""


def titles(model: GlobalModel) -> dict[int, str]:
    """Return each phenotype's title: the name that a user gave, or else a title made from codes."""
    return made_titles(model.codes_by_mode()) | dict(model.names)


def made_titles(phenotypes: Mapping[int, Rows]) -> dict[int, str]:
    """Make a unique title for each phenotype from its leading codes."""
    leads = Counter(
        (mode, row.code)
        for rows in phenotypes.values()
        for mode, of_mode in rows.items()
        for row in leading(of_mode)
    )
    common = {code for code, times in leads.items() if times > max(1, _COMMON * len(phenotypes))}
    made = {number: _title(rows, common) for number, rows in phenotypes.items()}
    uses = Counter(made.values())
    made |= {n: _title(phenotypes[n], set()) for n, text in made.items() if uses[text] > 1}
    return unique(made)


def leading(rows: Sequence[CodeRow], share: float = LEADING) -> list[CodeRow]:
    """Return the codes whose weight is at least `share` times the first (and largest) weight."""
    return [row for row in rows if abs(row.weight) >= share * abs(rows[0].weight)]


def phrase(description: str, code: str) -> str:
    """Return the last part of a code's description, or the code if the description is empty.

    Parts are separated by ``|``. If there are four or more parts, return the last two parts.
    """
    path = description.split("|")
    text = " – ".join(path[-2:] if len(path) > 3 else path[-1:]) or code
    text = " ".join(_FILLERS.sub("", text).split()).strip(" ,;-/") or code
    return text[0].lower() + text[1:] if text[:2].istitle() and text[1:2].islower() else text


def _title(rows: Rows, common: set[tuple[str, str]]) -> str:
    parts: list[str] = []
    for mode in sorted(rows, key=lambda mode: TREATMENTS.search(mode) is not None):
        kept = [row for row in leading(rows[mode]) if (mode, row.code) not in common]
        if kept and max(abs(row.weight) for row in kept) < _ENOUGH * abs(rows[mode][0].weight):
            kept = []
        kept.sort(key=lambda row: -_relevance(row))
        short = (phrase(row.description, row.code).split(", ")[0] for row in kept)
        names = [name for name in dict.fromkeys(short) if name not in parts]
        if names:
            parts.append(_either(names, _NAMED if not parts else 1))
    if not parts and common:
        return _title(rows, set())
    text = " with ".join(parts)
    return text[:1].upper() + text[1:] or "no code has any weight"


def _either(names: Sequence[str], most: int) -> str:
    """Join names as ``a, b or c``. Replace the names after the first `most` with ``others``."""
    parts = list(names) if len(names) <= most else [*names[:most], "others"]
    return " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


STABLE, PARTLY, UNCONFIRMED, NOT_FOUND = "stable", "partly", "unconfirmed", "not found"
LIKELY, UNCERTAIN, DOUBTFUL = "likely real", "uncertain", "doubtful"
MOST_FALSE = 0.1
"""The largest chance that `likelihood` calls likely real."""


def stability(pairs: Sequence[tables.Pair]) -> str:
    """Return a label such as ``stable``, which says whether other runs found the phenotype too."""
    count = sum(pair.is_replicated for pair in pairs)
    if count:
        return STABLE if count == len(pairs) else PARTLY
    return UNCONFIRMED if any(pair.is_by_chance for pair in pairs) else NOT_FOUND


def likelihood(chance: float) -> str:
    """Return a label such as ``likely real`` for the probability of a false discovery."""
    return LIKELY if chance <= MOST_FALSE else UNCERTAIN if chance <= EVEN else DOUBTFUL


def certainty(pairs: Sequence[tables.Pair], chance: float | None) -> list[str]:
    """Return a phenotype's `stability` and `likelihood` labels, as far as they are known."""
    return [stability(pairs)] * bool(pairs) + ([] if chance is None else [likelihood(chance)])


def certainties(
    model: GlobalModel, others: Sequence[tables.Replication], summary: Summary | None
) -> dict[int, list[str]]:
    """Return each phenotype's `certainty`, or empty lists if the model is uninformative."""
    if summary is not None and uninformative_message(summary):
        return {r: [] for r in range(1, model.rank + 1)}
    chances = model.false_discovery or [None] * model.rank
    return {r: certainty(tables.pairs_of(r, others), p) for r, p in enumerate(chances, start=1)}


def first_line(
    table: tables.PhenotypeTable | None, labels: Sequence[Sequence[str]], unit: str
) -> str:
    """Summarise a run in one sentence, such as ``Twenty patterns; nine are stable``.

    `labels` has each phenotype's `certainty`. `unit` is the name for rows, such as ``patients``.
    """
    counts, rank = Counter(label for own in labels for label in own), len(labels)
    parts = [f"{counted(rank)} pattern{'' if rank == 1 else 's'}"]
    for best, *others in (STABLE, PARTLY, UNCONFIRMED, NOT_FOUND), (LIKELY, UNCERTAIN, DOUBTFUL):
        sure, beside = counts[best], best == LIKELY and counts[STABLE] > 0
        # If other runs found the patterns again, "none is likely real" would say little.
        if sure or (counts.keys() & {*others} and not beside):
            both = sum({STABLE, LIKELY} <= {*own} for own in labels)
            also = f" (of which stable: {counted(both) if both else 'none'})" * beside
            are = "is" if sure < 2 else "are"
            parts.append(f"{counted(sure) if sure else 'none'} {are} {best}{also}")
    if missed := counts[UNCONFIRMED] + counts[NOT_FOUND]:
        parts.append(f"{counted(missed)} not confirmed by other runs")
    if table is not None and isinstance(table.without, float):
        share = 100 * (1 - table.without)
        shown = "under 1" if share < 1 else "over 99" if share > 99 else f"{share:.0f}"
        parts.append(f"{shown} % of the {unit} have at least one")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def paragraph(phenotype: tables.Phenotype, table: tables.PhenotypeTable, unit: str) -> list[str]:
    """Return sentences describing the patients who have a phenotype."""
    share = phenotype.prevalence
    if share == "<10":
        return [f"Fewer than ten {unit}."]
    sites, span = [v for v in phenotype.by_site.values() if isinstance(v, float)], ""
    if len(sites) == len(phenotype.by_site) > 1:
        span = f", from {percent(min(sites))} to {percent(max(sites))} by site"
    if isinstance(share, str):
        sentences = [f"{share.capitalize()} {unit}."]
    else:
        sentences = [f"{share * table.patients:,.0f} {unit} ({percent(share)}{span})."]
    for mode in sorted(phenotype.codes, key=lambda mode: bool(TREATMENTS.search(mode))):
        observed = _observed(phenotype.codes[mode])
        if observed:
            first, *rest = observed
            text = ", ".join([" had ".join(first), *map(" ".join, rest)])
            sentences.append(f"{mode[:1].upper()}{mode[1:]}: {text}.")
    for label, association in phenotype.outcomes.items():
        owners = share * table.patients if isinstance(share, float) else 0.0
        text, name = rate(association, table.rates.get(label), unit, owners), outcome(label)
        sentences.append(f"{name[:1].upper()}{name[1:]}: {text}.")
    return sentences


def rate(
    association: tables.Association, everybody: tables.Share, unit: str, owners: float = 0.0
) -> str:
    """Describe an outcome's rate among a phenotype's patients, and the rate among all patients.

    `owners` is the number of patients with the phenotype, or 0 if this number is unknown.
    """
    of_all = f"; all analysed {unit} {percent(everybody)}" if isinstance(everybody, float) else ""
    if association.rate == "hidden":
        return f"hidden, because the rate would reveal a small count{of_all}"
    if not isinstance(association.rate, float) or association.rate_interval is None:
        most = math.ceil(1000 * (tables.SMALL - 1) / owners) / 10 if owners else 100
        return f"fewer than ten{f', a rate of at most {most} %' * (most < 100)}{of_all}"
    low, high = (f"{100 * end:.1f}" for end in association.rate_interval)
    return f"{percent(association.rate)} (95 % interval {low} to {high} %){of_all}"


def leading_sentence(rows: Rows) -> str:
    """List a phenotype's leading codes in a sentence, for a run without patient counts."""
    parts = []
    for mode, of_mode in rows.items():
        names = (named(row.description, row.code) for row in leading(of_mode)[:_CODES])
        parts.append(f"{mode}: {', '.join(names) or 'none'}")
    return f"Leading codes. {'; '.join(parts)}."


def certainty_sentence(
    pairs: Sequence[tables.Pair], chance: float | None = None, same: Sequence[int] = ()
) -> str:
    """Explain a phenotype's `certainty` labels, which depend on `pairs` and `chance`.

    `same` lists the phenotypes that resemble the described phenotype in all modes but one.
    """
    runs, count, own = len(pairs), sum(pair.is_replicated for pair in pairs), ""
    if chance is not None:
        own = f"a fit to other patients would lack about {100 * chance:.0f} % of such patterns"
        if chance == EVEN:
            why = "its codes may be merely frequent, or many patterns of this run may be noise"
            if same:
                why = f"it differs from no. {ranges(same)} in one kind of code only, or {why}"
            own = f"the probability is set to 50 %, because {why}"
        own = f"{likelihood(chance).capitalize()}: {own}."
    if not pairs:
        return own or "Not checked: this run was not compared with another run."
    every = {1: "the other run", 2: "both other runs"}.get(runs, f"all {counted(runs)} other runs")
    found = {
        STABLE: f"Stable: found again in {every}.",
        PARTLY: f"Partly stable: found again in {counted(count)} of {counted(runs)} other runs.",
        UNCONFIRMED: "Unconfirmed: its match in another run is no closer than a chance match.",
        NOT_FOUND: "Not found again in any other run, which may have merged or split the pattern.",
    }[stability(pairs)]
    return f"{found} {own}".strip()


def review_sentence(review: Review | None) -> str:
    """Describe a chart review, or return an empty string if `review` is None."""
    if review is None:
        return ""
    text = f"Chart review: {'kept' if review.verdict == 'keep' else 'dropped'}"
    for share, charts, where in (
        (review.confirmed, review.charts, "with the highest scores"),
        (review.near_confirmed, review.near_charts, "near the threshold"),
    ):
        if share is not None:
            text += f", {100 * share:.0f} % of {charts} charts {where} confirmed"
    return f"{text}."


def named(description: str, code: str) -> str:
    """Return a code's name, followed by the code itself if the code is short."""
    text = phrase(description, code)
    return f"{text} ({code})" if text != code and len(code) <= _LONGEST_CODE else text


def _observed(codes: Sequence[tables.CodeWeight]) -> list[tuple[str, str]]:
    """Return frequencies and names of a phenotype's typical codes, most frequent code first."""

    def share(value: tables.Share) -> float:
        return value if isinstance(value, float) else float(value in ("most", "nearly all"))

    marking = [c for c in codes if share(c.observed) >= max(_OFTEN, _MORE * share(c.everybody))]
    ranked = sorted(marking or codes[:1], key=lambda code: -share(code.observed))[:_CODES]
    return [
        (code.observed if isinstance(code.observed, str) else f"{100 * known:.0f} %",
         named(code.description, code.code))
        for code in ranked
        if (known := share(code.observed))
    ]  # fmt: skip


def search_words(texts: Iterable[str]) -> str:
    """Return everyday words for the codes described in `texts`, for the report's search box."""
    known: dict[str, str] = tomllib.loads(_SEARCH_WORDS.read_text("utf-8"))
    text = " ".join(texts).lower()
    return ", ".join(word for word, names in known.items() if re.search(names, text))


_WAYS_OUT = {
    "none": "start = cooccurrence, more rounds, fewer or more frequent codes, or a lower rank",
    "paper": "a larger epsilon, or privacy = patient; the paper's noise seldom leaves a signal",
    "patient": "more patients, fewer codes (setting codes), a lower rank or a larger epsilon; "
    "dpfact plan says how much of each",
}


def headline(summary: Summary) -> list[tuple[str, str]]:
    """Return the (label, text) lines of a run's summary for a terminal."""
    s, sent, errors = summary, summary.exchange, summary.errors
    time, failures = duration(sent.seconds), ""
    if errors:
        time += f" in rounds; the sites' solvers took {duration(errors.solver_seconds)} in all"
    missing = s.measured.sites_without_a_round if s.measured else ()
    if sent.failures or missing:
        never = f"; no round with {', '.join(missing)}" if missing else ""
        failures = f"{sent.failures} of the sites' replies{never}"
    parts = plural(s.sites, "site"), plural(s.rounds, "round"), plural(s.rank, "phenotype")
    lines = {
        "run": f"{s.name}: {', '.join(parts)}",
        "privacy": _promise(summary),
        **_measured(summary),
        "certainty": _certainty(summary),
        "sent": f"{size(sent.bytes_up)} up, {size(sent.bytes_down)} down (for the same rounds, the "
        f"paper's scheme takes {size(sent.bytes_paper)}, and TRIP {size(sent.bytes_trip)})",
        "time": time,
        "failures": failures,
    }
    return [(label, text) for label, text in lines.items() if text]


def uninformative_message(summary: Summary) -> str:
    """Return a warning with remedies if the model is uninformative, or else an empty string."""
    measured = summary.measured
    if measured is None or not measured.is_uninformative:
        return ""
    return (
        f"the shared phenotypes explain {percent(measured.fit_shared)} of the data, and code "
        f"frequencies alone {percent(measured.fit_frequencies)}. The phenotypes add nothing, so "
        f"no prevalence, odds or AUC is shown. What can help: {_WAYS_OUT[summary.privacy]}"
    )


def _promise(summary: Summary) -> str:
    """Describe a run's privacy: epsilon (rounded up), delta, and what is proven."""
    spent = summary.spent
    if spent is None:
        return summary.claim
    figure = Figure(spent.accountant, spent.epsilon, spent.delta, spent.claim, spent.replacing)
    alone = "" if spent.alone is None else f"; if all others collude: {rounded_up(spent.alone)}"
    return about_rows(str(figure), summary.row_unit) + alone


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
    # This fit can be compared with that of systems whose sites share all feature factors.
    lines["shared fit"] = (
        f"{percent(measured.fit_shared)} by the shared phenotypes alone, {summary.row_unit}s "
        f"refitted; {percent(measured.fit_frequencies)} by code frequencies"
    )
    lines["nothing"] = uninformative_message(summary)
    if measured.fms is not None:
        lines["factor match"] = f"{measured.fms:.3f} of 1 with the planted phenotypes"
    aucs = {outcome(label): _auc(each.overall) for label, each in measured.predictions.items()}
    return lines | aucs


def _auc(overall: GroupAUC) -> str:
    if not (overall.memberships and overall.raw_codes and overall.volume):
        return ""
    auc, spread = overall.memberships.mean, overall.memberships.spread
    return (
        f"AUC {auc:.3f} ± {spread:.3f} from phenotypes, {overall.raw_codes.mean:.3f} from raw "
        f"codes, {overall.volume.mean:.3f} from volume"
    )


def _certainty(summary: Summary) -> str:
    chances = summary.false_discovery
    if not chances or uninformative_message(summary):
        return ""
    likely = sum(likelihood(chance) == LIKELY for chance in chances)
    of = f"{likely} of {plural(len(chances), 'phenotype')}"
    found = f"likely real, judged by this run's own noise: {of}"
    return found if likely else f"{found}; more may be at a lower rank, which auto-rank looks for"


UNITS: Mapping[Unit, str] = {
    "patient": "everything that a site holds about one patient",
    "entry": "one cell of a site's table: one patient's count of one combination of codes",
}
NEIGHBOURS: Mapping[Neighbours, str] = {
    "add-remove": "that patient is in the data or not",
    "replace": "that cell holds another value",
}
GIVEN_CODES = "; given the data's code lists"
GIVEN_CODES_AND_NUMBER = "; given the data's code lists and its exact number of patients"
"""Notes added to a claim, on facts that a patient-mode simulation takes from the data without
noise. One patient can change these facts unless public code lists and `patients` are given."""
NOT_COVERED: tuple[str, ...] = (
    "Patient factors and the site's own refitted factors, which stay at the site without noise.",
    "Results computed from these factors, even if a simulation shows them: errors, use by site, "
    "prevalence, mortality coefficients and AUC.",
    "Codes, rank and settings that were chosen by looking at patients' data outside this run.",
    "Other runs on the same patients: each has its own cost. A hospital's ledger adds them up. A "
    "simulation's ledgers cover only runs with the same state-dir.",
    "Patients with records at several sites. Their loss can be the sum of what those sites spent.",
    "Whether a hospital takes part, which rounds it answers, and how long each answer takes.",
)
