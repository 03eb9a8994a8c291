"""Compare finished runs in a table and on a page, and find phenotypes that several runs share.

A phenotype that another run also finds is unlikely to be due to chance. The other run may use fresh
noise, no noise or other data. Comparisons use only run folders, not patients' data.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.clinical import BODY_SYSTEMS, CCS, clinical_measures
from dpfact_flower.evaluation.finished_run import FinishedRun
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.page import belonging, figure, outcome, write_page
from dpfact_flower.evaluation.prose import stability, titles
from dpfact_flower.evaluation.summary import AUC, Measured, RunSpending, Summary
from dpfact_flower.evaluation.tables import Pair, Replication
from dpfact_flower.privacy import SEEDED_CLAIM, rounded_up
from dpfact_flower.tensor.cp import Matrices, chance_cosines, match_columns

_DIGITS = 6  # decimals of cosines, so that equal cosines compare as equal
FAIR = 0.85
"""Cosine above which two columns count as similar (Lorenzo-Seva and ten Berge, 2006)."""


def comparison(folders: Sequence[Path]) -> str:
    """Return a Markdown table with a row for each run, and ``-`` for each missing value."""
    rows = [{"run": name, **columns(run)} for name, run in _read(folders).items()]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def columns(run: FinishedRun) -> dict[str, str]:
    """Return a run's row in `comparison`, as a mapping from column headings to texts."""
    model, summary = run.model, run.summary
    errors, measured = summary.errors, summary.measured
    together = measured.coherence if measured else None
    match = measured.fms if measured else None
    about = {m.classification: f"{m.about} of {model.rank}" for m in clinical_measures(model)}
    first = next((p.overall for p in summary.predictions.values()), None)
    texts = {
        "data": summary.name,
        "sites": str(summary.sites),
        "patients": errors and f"{sum(site.patients for site in errors.per_site_data):,}",
        "phenotypes": str(summary.rank) + ", which explain nothing" * bool(run.uninformative),
        "privacy": _privacy(summary),
        "epsilon (replacing a record)": _epsilon(summary.spent),
        "fit": errors and f"{errors.fit:.3f}",
        "AUC": first and _area(first.memberships),
        "AUC raw codes": first and _area(first.raw_codes),
        "AUC volume": first and _area(first.volume),
        "match with planted": None if match is None else f"{match:.2f}",
        **{f"about one {name}": about.get(name) for name in (BODY_SYSTEMS, CCS)},
        "coherence of leading codes (NPMI)": together and f"{together.value:.2f}",
        "seconds": f"{summary.exchange.seconds:.0f}",
    }
    return {header: text or "-" for header, text in texts.items()}


def protection(summary: Summary) -> str:
    """Return a run's epsilon and privacy claim, or ``without noise`` if the run adds no noise."""
    if summary.spent is None:
        return "without noise"
    return f"epsilon {rounded_up(summary.spent.epsilon)}, {summary.claim}"


def _privacy(summary: Summary) -> str:
    """Return the privacy mode and, if the guarantee is not proven, the run's privacy claim."""
    claim = SEEDED_CLAIM if SEEDED_CLAIM in summary.claim else summary.claim
    is_less = claim == SEEDED_CLAIM or "not proven" in claim
    return f"{summary.privacy} ({claim})" if is_less else summary.privacy


def _epsilon(spent: RunSpending | None) -> str | None:
    if spent is None:
        return None
    replacing = "" if spent.replacing is None else f" ({rounded_up(spent.replacing)})"
    return rounded_up(spent.epsilon) + replacing


def _area(auc: AUC | None) -> str | None:
    return f"{auc.mean:.3f} ± {auc.spread:.3f}" if auc else None


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write a page that compares finished runs. Only the file's owner can read the page."""
    with belonging(*folders):
        return write_page(out, "compare.html.j2", _content(_read(folders)))


def _read(folders: Sequence[Path]) -> dict[str, FinishedRun]:
    """Return a mapping from folder names to runs. If two names clash, use the folders' paths."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise DataError("runs: one folder is given twice; give each run once")
    names = [folder.resolve().name for folder in folders]
    return {
        name if names.count(name) == 1 else str(folder): FinishedRun.read(folder)
        for folder, name in zip(folders, names, strict=True)
    }


def _content(runs: Mapping[str, FinishedRun]) -> dict[str, Any]:
    (own, first), *others = runs.items()
    matched, left_out = {}, {}
    for name, run in others:
        if run.model.modes != first.model.modes or run.uninformative:
            left_out[name] = run
        elif not first.uninformative:
            matched[name] = (_replication(first, run), titles(run.model))
    qualities, picture = _qualities(runs)
    return {
        "runs": runs,
        "name": own,
        "first": first,
        "fair": FAIR,
        "stability": stability,
        "columns": {name: columns(run) for name, run in runs.items()},
        "protection": {name: protection(run.summary) for name, run in runs.items()},
        "left_out": left_out,
        "titles": titles(first.model),
        "matched": matched,
        "qualities": qualities,
        "figure": picture,
    }


def _qualities(runs: Mapping[str, FinishedRun]) -> tuple[dict[str, dict[str, float]], Any]:
    """Return each quality measure's values by run, and a figure (None if no run has a value)."""
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    found: dict[str, dict[str, float]] = {}
    for name, measured in ((name, run.summary.measured) for name, run in runs.items()):
        for title, value in _measures(measured) if measured else ():
            if value is not None:
                found.setdefault(title, {})[name] = value
    panels = []
    for title, of_title in [*found.items()][:3]:  # panels side by side
        points = {name: (runs[name].summary.spent, value) for name, value in of_title.items()}
        panels.append(partial(plots.tradeoff, title=title, runs=points))
    return found, figure("tradeoff", "Quality against epsilon", 2.8, *panels) if panels else None


def _measures(measured: Measured) -> Iterator[tuple[str, float | None]]:
    yield "shared fit", measured.fit_shared
    yield "match with planted phenotypes", measured.fms
    for label, prediction in measured.predictions.items():
        area = prediction.overall.memberships
        yield f"AUC, {outcome(label)}", area.mean if area else None


def replications(folder: Path, others: Sequence[Path]) -> tuple[Replication, ...]:
    """Match a run's phenotypes with those of other runs, which must have the same modes.

    Raise an error if `others` contains a run whose model is uninformative.
    """
    first, *runs = map(FinishedRun.read, (folder, *others))
    for other, run in zip(others, runs, strict=True):
        if run.uninformative:
            raise SettingsError(f"beside: {other} learned nothing, so it says nothing about others")
        if run.model.modes != first.model.modes:
            modes, needed = (", ".join(each.model.modes) for each in (run, first))
            raise DataError(f"{other}: its modes are {modes}; need {needed}")
    return tuple(_replication(first, run) for run in runs)


def _replication(first: FinishedRun, other: FinishedRun) -> Replication:
    left, right = _aligned(first.model, other.model)
    match, chance = match_columns(left, right), chance_cosines(left, right).tolist()
    matched = (each.tolist() for each in (match.estimate, match.truth, match.cosines))
    fair = round(FAIR ** len(left), _DIGITS)
    pairs = [
        Pair(mine + 1, its + 1, round(cosine, _DIGITS), fair, round(chance[mine], _DIGITS))
        for mine, its, cosine in zip(*matched, strict=True)
    ]
    pairs.sort(key=lambda pair: pair.number)
    name, how = Path(other).resolve().name, protection(other.summary)
    return Replication(name, how, first.model.rank, tuple(pairs))


def _aligned(*models: GlobalModel) -> Iterator[Matrices]:
    """Yield each model's factors, with one row for each code that occurs in any model."""
    places = []
    for lists in zip(*(model.vocabularies for model in models), strict=True):
        codes = dict.fromkeys(code for vocabulary in lists for code in vocabulary.codes)
        places.append({code: row for row, code in enumerate(codes)})
    for model in models:
        factors = []
        for factor, own, place in zip(model.factors, model.vocabularies, places, strict=True):
            aligned = np.zeros((len(place), factor.shape[1]))
            aligned[[place[code] for code in own.codes]] = factor
            factors.append(aligned)
        yield tuple(factors)
