"""One self-contained HTML page about a run, made from the files of its folder alone.

The page needs no network, no JavaScript and no fonts of its own, and forbids the browser from
loading anything. The same files give the same bytes. matplotlib and Jinja2 are imported when a
report is written, never before: a site's path must not wait for them.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfact_flower.errors import DataError, MissingDependencyError
from dpfact_flower.evaluation import words
from dpfact_flower.evaluation.names import read_names
from dpfact_flower.evaluation.nothing import nothing_learned
from dpfact_flower.evaluation.run_folder import (
    REPORT,
    read_config,
    read_model,
    read_phenotypes,
    read_summary,
)
from dpfact_flower.evaluation.summary import SiteSpending, Summary
from dpfact_flower.evaluation.tables import (
    CodeWeight,
    GlobalCodes,
    Phenotype,
    SharedPhenotypes,
    SiteUsage,
)
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy import SEEDED_CLAIM, rounded_up
from dpfact_flower.privacy.scope import NEIGHBOURS, NOT_COVERED, UNITS
from dpfact_flower.server.history import RoundRecord, read_history
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    SolverSettings,
    describe,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "report.html.j2"


def write_report(folder: Path) -> Path:
    """Write ``report.html`` from the files of a run's folder.

    Parameters
    ----------
    folder : Path
        Of a finished run, simulated or deployed; what only the sites could measure is left out.

    Returns
    -------
    Path
        The report, readable by its owner alone.

    Raises
    ------
    DataError
        If a file of the folder is missing or damaged.
    MissingDependencyError
        If matplotlib or Jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: PLC0415
        import matplotlib  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingDependencyError(
            f'{error.name} is not installed; a report needs: pip install "dpfact-flower[report]"'
        ) from None
    from dpfact_flower.evaluation import plots  # noqa: PLC0415

    run = _read(Path(folder))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpfact_flower", "evaluation"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    template = environment.get_template(TEMPLATE)
    try:
        page = template.render(_content(run), figures=_figures(run, plots))
    except (LookupError, TypeError, ValueError, ArithmeticError, jinja2.UndefinedError) as error:
        raise DataError(
            f"{run.folder}: its files are damaged, or do not belong together "
            f"({type(error).__name__})"
        ) from error
    with replacing(run.folder / REPORT) as file:
        file.write(page.encode())
    return run.folder / REPORT


@dataclass(frozen=True)
class _Run:
    """The files of a run's folder, read."""

    folder: Path
    summary: Summary
    phenotypes: SharedPhenotypes | GlobalCodes
    records: list[RoundRecord]
    codes: dict[str, int]
    settings: dict[str, Any]
    versions: dict[str, Any]
    names: dict[int, str]

    @property
    def shared(self) -> SharedPhenotypes | None:
        """Tables over the patients of all sites, where they were available to be counted."""
        return self.phenotypes if isinstance(self.phenotypes, SharedPhenotypes) else None


def _read(folder: Path) -> _Run:
    summary, phenotypes = read_summary(folder), read_phenotypes(folder)
    config = read_config(folder)
    _, vocabularies = read_model(folder)
    return _Run(
        folder,
        summary,
        phenotypes,
        read_history(folder),
        {vocabulary.name: len(vocabulary) for vocabulary in vocabularies},
        config["run-config"],
        config["versions"],
        read_names(folder, summary.rank),
    )


# --- What the template shows ----------------------------------------------------------------------


def _content(run: _Run) -> dict[str, Any]:
    summary, shared = run.summary, run.shared
    return {
        "summary": summary,
        "nothing": nothing_learned(summary),
        "claim": _claim(summary.claim, run.settings),
        "guarantees": _guarantees(summary, run.settings),
        "units": UNITS,
        "neighbours": NEIGHBOURS,
        "not_covered": NOT_COVERED,
        "records": run.records,
        "failures": _failures(run.records),
        "missed": _ranges(record.round for record in run.records if not record.updated),
        "usage": _usage(shared.usage) if shared else None,
        "phenotypes": _cards(run.phenotypes),
        "names": run.names,
        "patients": shared.table.patients if shared else None,
        "prediction": summary.measured.prediction if summary.measured else None,
        "codes": run.codes,
        "settings": run.settings,
        "meanings": {
            row.key: row.help
            for kind in (AppSettings, RunSettings, SolverSettings, PrivacySettings)
            for row in describe(kind)
        },
        "versions": run.versions,
    }


def _claim(claim: str, settings: Mapping[str, Any]) -> str:
    """Words that must accompany every epsilon: the claim, and that seeded noise voids it."""
    seeded = settings.get("noise-seed", -1) != -1
    return f"{SEEDED_CLAIM} ({claim})" if seeded and SEEDED_CLAIM not in claim else claim


@dataclass(frozen=True)
class _Guarantee:
    """What a group of sites that spent alike spent, with the claim to print."""

    spent: SiteSpending
    sites: list[str]
    claim: str


def _guarantees(summary: Summary, settings: Mapping[str, Any]) -> list[_Guarantee]:
    """What sites spent, each accountant's epsilon with its claim; sites that spent alike, once."""
    rows: list[_Guarantee] = []
    for site, spent in summary.spent.per_site.items() if summary.spent else ():
        alike = next((row for row in rows if row.spent == spent), None)
        if alike:
            alike.sites.append(site)
        else:
            rows.append(_Guarantee(spent, [site], _claim(spent.claim, settings)))
    return rows


def _failures(records: Iterable[RoundRecord]) -> list[dict[str, str]]:
    """Who failed, why and in which rounds; one row for a failure that recurs."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in records:
        for failure in record.failures:
            rounds.setdefault((failure.who, failure.reason), []).append(record.round)
    return [
        {"who": who, "reason": reason, "rounds": _ranges(found), "count": str(len(found))}
        for (who, reason), found in sorted(rounds.items())
    ]


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text: ``1–3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def _usage(usage: SiteUsage) -> dict[str, Any]:
    """Which phenotypes each site has switched off, and at which sites each is off."""
    off = {
        site: [number for number, is_off in enumerate(row, start=1) if is_off]
        for site, row in zip(usage.sites, usage.off, strict=True)
    }
    off_at: dict[int, list[str]] = {}
    for site, numbers in off.items():
        for number in numbers:
            off_at.setdefault(number, []).append(site)
    return {
        "off": {site: (len(numbers), _ranges(numbers)) for site, numbers in off.items()},
        "off_at": off_at,
        "count": sum(map(len, off.values())),
    }


class _Codes(NamedTuple):
    """A phenotype of which nothing is known but its codes."""

    number: int
    codes: dict[str, tuple[CodeWeight, ...]]


def _cards(phenotypes: SharedPhenotypes | GlobalCodes) -> Sequence[Phenotype | _Codes]:
    """Cards of the report: by lambda where patients' data gives it, else by number."""
    if isinstance(phenotypes, SharedPhenotypes):
        return sorted(phenotypes.table.phenotypes, key=lambda p: (-p.weight, p.number))
    modes = phenotypes.codes
    rank = max((len(columns) for columns in modes.values()), default=0)
    return [
        _Codes(r + 1, {mode: columns[r] for mode, columns in modes.items()}) for r in range(rank)
    ]


# --- Figures --------------------------------------------------------------------------------------


def _figures(run: _Run, plots: ModuleType) -> dict[str, Any]:
    """Inline SVG by name; what the folder has no values for is absent."""
    summary, shared = run.summary, run.shared
    figures = {}
    if summary.errors and len(summary.errors.error_by_round) > 1:
        label = "Error of the sites' models by round"
        figures["convergence"] = _svg(
            plots, "convergence", lambda: plots.convergence(summary), label
        )
    if run.records:
        figures["traffic"] = _svg(
            plots, "traffic", lambda: plots.traffic(run.records), "Bytes sent by round"
        )
    if shared:
        order = [phenotype.number for phenotype in _cards(shared)]
        label = "Heat map: which site uses which phenotype"
        figures["usage"] = _svg(
            plots, "usage", lambda: plots.usage(shared.usage, order, names=run.names), label
        )
    prediction = summary.measured.prediction if summary.measured else None
    if prediction and any(g.memberships for g in (prediction.overall, *prediction.sites)):
        figures["auc"] = _svg(
            plots, "auc", lambda: plots.auc(prediction), "AUC of predicting in-hospital death"
        )
    return figures


def _svg(plots: ModuleType, name: str, draw: Callable[[], Figure], label: str) -> Any:
    """SVG element of a figure, in the page's colours, with ids that no other figure has."""
    import matplotlib  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the bytes
        matplotlib.rcParams.update(plots.STYLE)
        file = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        draw().savefig(file, format="svg", metadata=metadata, transparent=True)
    svg = file.getvalue()
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg[svg.index("<svg") :])  # HTML knows them
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", svg)
    for colour, variable in plots.THEME.items():
        svg = svg.replace(colour, f"var({variable})")
    return Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))


_FILTERS: dict[str, Callable[[Any], str]] = {
    "rounded_up": rounded_up,
    "bytes": words.size,
    "duration": words.duration,
    "p_value": words.p_value,
    "number": words.number,
    "percent": words.percent,
    "signed": words.signed,
    "odds_ratio": lambda coefficient: f"{math.exp(coefficient):.2f}",
}
