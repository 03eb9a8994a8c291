"""One self-contained HTML page about a run, made from the files of its folder alone.

The page needs no network, no JavaScript and no fonts of its own, and forbids the browser to load
anything. The same files give the same bytes. matplotlib and Jinja2 are imported when a report is
written, never before: a site's path must not wait for them.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dpfact_flower.errors import DataError, MissingDependencyError
from dpfact_flower.evaluation import words
from dpfact_flower.evaluation.run_folder import (
    PHENOTYPES,
    REPORT,
    check_keys,
    read_config,
    read_json,
    read_model,
    read_summary,
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
    except (LookupError, TypeError, ValueError, jinja2.UndefinedError) as error:
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
    summary: dict[str, Any]
    phenotypes: dict[str, Any]
    records: list[RoundRecord]
    codes: dict[str, int]
    settings: dict[str, Any]
    versions: dict[str, Any]


def _read(folder: Path) -> _Run:
    summary = read_summary(folder)
    phenotypes = read_json(folder / PHENOTYPES)
    measured = isinstance(phenotypes, dict) and "table" in phenotypes
    check_keys(folder / PHENOTYPES, phenotypes, ("table", "usage") if measured else ("codes",))
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
    )


# --- What the template shows ----------------------------------------------------------------------


def _content(run: _Run) -> dict[str, Any]:
    claim = _claim(run.summary, run.settings)
    return {
        "summary": run.summary,
        "claim": claim,
        "guarantees": _guarantees(run.summary, run.settings),
        "units": UNITS,
        "neighbours": NEIGHBOURS,
        "not_covered": NOT_COVERED,
        "records": run.records,
        "failures": _failures(run.records),
        "missed": _ranges(record.round for record in run.records if not record.updated),
        "usage": _usage(run.phenotypes),
        "phenotypes": _phenotypes(run.phenotypes),
        "patients": run.phenotypes.get("table", {}).get("patients"),
        "prediction": run.summary.get("prediction"),
        "codes": run.codes,
        "settings": run.settings,
        "meanings": {
            row.key: row.help
            for kind in (AppSettings, RunSettings, SolverSettings, PrivacySettings)
            for row in describe(kind)
        },
        "versions": run.versions,
    }


def _claim(guarantee: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Words that must stand beside every epsilon: the claim, and that seeded noise voids it."""
    claim = str(guarantee["claim"])
    seeded = settings.get("noise-seed", -1) != -1
    return f"{SEEDED_CLAIM} ({claim})" if seeded and SEEDED_CLAIM not in claim else claim


def _guarantees(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What sites spent, each accountant's epsilon with its claim; sites that spent alike, once."""
    if summary["epsilon"] is None:
        return []
    spent = summary.get("per_site") or {"the run": summary}
    rows: list[dict[str, Any]] = []
    for site, guarantee in spent.items():
        row = {
            "epsilons": guarantee.get("epsilons")
            or {guarantee["accountant"]: guarantee["epsilon"]},
            "delta": guarantee["delta"],
            "rho": guarantee.get("rho"),
            "releases": guarantee.get("releases"),
            "ledger": guarantee.get("ledger", []),
            "claim": _claim(guarantee, settings),
        }
        same = next((found for found in rows if found | {"sites": []} == row | {"sites": []}), None)
        if same:
            same["sites"].append(site)
        else:
            rows.append(row | {"sites": [site]})
    return rows


def _failures(records: Iterable[RoundRecord]) -> list[dict[str, str]]:
    """Who failed, why and in which rounds; one row for the same failure again and again."""
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


def _usage(phenotypes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which phenotypes each site has switched off, and at which sites each is off."""
    if "usage" not in phenotypes:
        return None
    usage = phenotypes["usage"]
    off = {
        site: [number for number, is_off in enumerate(row, start=1) if is_off]
        for site, row in zip(usage["sites"], usage["off"], strict=True)
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


def _phenotypes(phenotypes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Cards of the report: by lambda where patients were there to give it, else by number."""
    if "table" in phenotypes:
        return sorted(phenotypes["table"]["phenotypes"], key=lambda p: (-p["weight"], p["number"]))
    modes = phenotypes["codes"]
    rank = max((len(columns) for columns in modes.values()), default=0)
    return [
        {"number": r + 1, "codes": {mode: columns[r] for mode, columns in modes.items()}}
        for r in range(rank)
    ]


# --- Figures --------------------------------------------------------------------------------------


def _figures(run: _Run, plots: ModuleType) -> dict[str, Any]:
    """Inline SVG by name; what the folder has no values for is absent."""
    figures = {}
    if len(run.summary.get("error_by_round", ())) > 1:
        figures["convergence"] = _svg(
            plots, "convergence", lambda: plots.convergence(run.summary),
            "Error of the sites' models by round",
        )  # fmt: skip
    if run.records:
        figures["traffic"] = _svg(
            plots, "traffic", lambda: plots.traffic(run.records), "Bytes sent by round"
        )
    if "usage" in run.phenotypes:
        order = [phenotype["number"] for phenotype in _phenotypes(run.phenotypes)]
        figures["usage"] = _svg(
            plots, "usage", lambda: plots.usage(run.phenotypes["usage"], order),
            "Heat map: which site uses which phenotype",
        )  # fmt: skip
    prediction = run.summary.get("prediction")
    if prediction and any(g["memberships"] for g in (prediction["overall"], *prediction["sites"])):
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
