"""A phenotype as a clinician would put it: whom it concerns, what they had, how sure it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from dpfact_flower.evaluation.beside import (
    NOT_FOUND,
    PARTLY,
    STABLE,
    UNCONFIRMED,
    Found,
    certainty,
)
from dpfact_flower.evaluation.names import Review
from dpfact_flower.evaluation.tables import Association, CodeWeight, Phenotype, PhenotypeTable
from dpfact_flower.evaluation.titles import TREATMENTS, phrase
from dpfact_flower.evaluation.words import counted, outcome, percent

_CODES = 4
"""So many codes of a mode are told at most."""
_OFTEN, _MORE = 0.2, 1.5
"""Of its patients at least this share have the code, and so many times the share of all."""
_LONGEST_CODE = 10


def first_line(
    table: PhenotypeTable | None, rank: int, words: Sequence[str], unit: str = "patients"
) -> str:
    """Say a run in one line: ``Twenty patterns; nine are stable; 36 % of the patients have one``.

    Parameters
    ----------
    table : PhenotypeTable or None
        Where patients were counted.
    rank : int
    words : sequence of str
        `certainty` of each phenotype; empty where nothing stands beside the run.
    unit : str
        What is counted, in the plural.
    """
    parts = [f"{counted(rank)} pattern{'' if rank == 1 else 's'}"]
    if any(words):
        stable = words.count(STABLE)
        parts.append(
            f"{counted(stable) if stable else 'none'} {'is' if stable < 2 else 'are'} stable"
        )
    if table is not None and isinstance(table.without, float):
        parts.append(f"{100 * (1 - table.without):.0f} % of the {unit} have one")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def paragraph(
    phenotype: Phenotype,
    patients: int,
    rates: Mapping[str, float | str | None],
    unit: str,
) -> list[str]:
    """Sentences about the patients who have a phenotype.

    Parameters
    ----------
    phenotype : Phenotype
    patients : int
        Of all sites.
    rates : mapping of str to float, str or None
        Share of all patients with an outcome, by label.
    unit : str
        What is counted, in the plural: ``patients``.
    """
    share = phenotype.prevalence
    if isinstance(share, str):
        return [f"Fewer than ten {unit}."]
    sites = [value for value in phenotype.by_site.values() if isinstance(value, float)]
    span = (
        f", from {percent(min(sites))} to {percent(max(sites))} by site" if len(sites) > 1 else ""
    )
    found = [f"{share * patients:,.0f} {unit} ({percent(share)}{span})."]
    for mode in sorted(phenotype.codes, key=lambda mode: bool(TREATMENTS.search(mode))):
        told = _observed(phenotype.codes[mode])
        if told:
            first, *rest = told
            found.append(", ".join([" had ".join(first), *map(" ".join, rest)]) + ".")
    for label, association in phenotype.outcomes.items():
        found.append(f"{outcome(label).capitalize()}: {rate(association, rates.get(label), unit)}.")
    return found


def rate(found: Association, everybody: float | str | None, unit: str = "patients") -> str:
    """How often an outcome occurs, with its interval, beside all patients; or that nobody knows."""
    of_all = f"; of all {unit} {percent(everybody)}" if isinstance(everybody, float) else ""
    if not isinstance(found.rate, float) or found.rate_interval is None:
        return f"too few to say{of_all}"
    low, high = (f"{100 * end:.1f}" for end in found.rate_interval)
    return f"{percent(found.rate)} (95 % interval {low} to {high} %){of_all}"


def leading_words(codes: Mapping[str, Iterable[tuple[str, str]]]) -> str:
    """A phenotype's leading codes, (code, description) by mode, where no patient was counted."""
    parts = [
        f"{mode}: " + ", ".join(named(description, code) for code, description in own)
        for mode, own in codes.items()
    ]
    return f"Leading codes. {'; '.join(parts)}."


def certainty_words(found: Sequence[Found]) -> str:
    """How sure a phenotype is, in a sentence."""
    runs, again = len(found), sum(each.pair.again for each in found)
    repeats = {1: "the repeat", 2: "both repeats"}.get(runs, f"all {counted(runs)} repeats")
    any_of = {1: "the repeat", 2: "either repeat"}.get(runs, f"any of {counted(runs)} repeats")
    return {
        "": "Not checked: no other run stands beside this one.",
        STABLE: f"Stable: found again in {repeats}.",
        PARTLY: f"Partly: found again in {counted(again)} of {counted(runs)} repeats.",
        UNCONFIRMED: "Unconfirmed: its codes are in so many patterns that a match proves nothing.",
        NOT_FOUND: f"Not found again in {any_of}: it may be an artefact of the noise.",
    }[certainty(found)]


def review_words(review: Review | None) -> str:
    """What a chart review at one hospital said of a phenotype; empty without one."""
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
    """A code's name, with the code behind it where that is short."""
    text = phrase(description, code)
    return f"{text} ({code})" if text != code and len(code) <= _LONGEST_CODE else text


def _observed(codes: Sequence[CodeWeight]) -> list[tuple[str, str]]:
    """How many have a code and its name, the most frequent first: those that mark the phenotype."""

    def share(value: float | str | None) -> float:
        return {"all": 1.0}.get(value, 0.0) if not isinstance(value, float) else value  # type: ignore[arg-type]

    marking = [c for c in codes if share(c.observed) >= max(_OFTEN, _MORE * share(c.everybody))]
    ranked = sorted(marking or codes[:1], key=lambda code: -share(code.observed))[:_CODES]
    return [
        (_how_many(code.observed), named(code.description, code.code))
        for code in ranked
        if share(code.observed)
    ]


def _how_many(observed: float | str | None) -> str:
    return "All" if observed == "all" else f"{100 * observed:.0f} %"  # type: ignore[operator]


_PEOPLE_SAY = {
    "heart attack": r"myocardial infarct|\bami\b|stemi",
    "stroke": r"cerebrovascular|cerebral art|cerebral infarct|intracerebral|crbl|subarachnoid",
    "high blood pressure": r"hypertens",
    "irregular heartbeat": r"dysrhythmia|fibrillation|arrhythm",
    "heart disease": r"heart|cardi|coronary|myocard",
    "kidney": r"renal|nephr|kidney|dialysis",
    "lungs": r"pulmon|pneumon|bronch|respirat|airway|ventilat",
    "copd": r"chronic airway|obstructive pulmonary|chronic bronchitis|emphysema",
    "diabetes": r"diabet|\bdm\b|insulin",
    "cancer": r"neopl|malign|carcinoma|leuk|lymphoma|metasta|chemotherap",
    "blood poisoning, sepsis": r"septic|sepsis",
    "infection": r"infect|pneumonia|septic|sepsis|cellulitis|bacter|viral",
    "blood clot": r"thromb|embol",
    "bleeding": r"hemorrh|bleed",
    "low blood count": r"anemi",
    "broken bone": r"fracture|\bfx\b",
    "joints, arthritis": r"arthr|osteoarth|joint",
    "liver": r"hepat|liver|cirrho",
    "stomach, bowel": r"gastr|intestin|colon|bowel|digest|stomach|ulcer",
    "mental health": r"depress|psych|schizo|bipolar|mood|anxiety",
    "drinking": r"alcohol",
    "overweight": r"obes",
    "thyroid": r"thyroid",
    "pregnancy, birth": r"pregnan|deliver|obstet|labor|newborn",
    "skin": r"cellulitis|skin|dermat|ulcer",
    "dementia": r"dementia|alzheimer|delirium",
    "breathing machine": r"mechanical ventilation",
}


def search_words(texts: Iterable[str]) -> str:
    """Words that people use for what a phenotype's codes name, for a page's search."""
    text = " ".join(texts).lower()
    return ", ".join(word for word, names in _PEOPLE_SAY.items() if re.search(names, text))
