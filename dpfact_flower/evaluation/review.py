"""A chart review: a check of a phenotype against the charts of a site's patients.

The sheet (CSV) and its page (HTML) name single patients in a random order. Their scores and groups
are in a key. No privacy guarantee covers these files, which stay at the hospital. Only the decision
and rounded shares go into the run's folder.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.membership import has_phenotype
from dpfact_flower.evaluation.model import GlobalModel, write_csv
from dpfact_flower.evaluation.page import write_page
from dpfact_flower.evaluation.prose import leading, titles
from dpfact_flower.evaluation.run_folder import Review, write_json, write_name, write_review
from dpfact_flower.evaluation.sheet import (
    KEY,
    NOTE,
    SheetKey,
    digest,
    filled_lines,
    new_files,
    read_key,
)

CHART_COLUMNS = ("chart", "patient", "verdict", "comment")
LEAST_CHARTS = 10
"""Smallest number of charts from which a share may leave the site."""
LEAST_PATIENTS = 4
VERDICTS, DECISIONS = ("yes", "no", "unsure"), ("keep", "drop", "name")
WHOLE = "phenotype"
"""Replacement for the chart number in the line that decides about the phenotype."""
ABOUT = "About single patients: keep this at the hospital. No guarantee covers it."
_FIRST = 8
"""Number of codes of a mode that are shown before the others unfold."""


@dataclass(frozen=True)
class Chart:
    """A patient of a sheet, with the score and group that the sheet does not show."""

    patient: str
    score: float
    near: bool


@dataclass(frozen=True)
class Key(SheetKey):
    """The key of a sheet: every patient's score and group."""

    phenotype: int
    charts: tuple[Chart, ...]
    note: str = ABOUT


@dataclass(frozen=True)
class Tally:
    """Number of charts of a group by verdict (`VERDICTS`). Only yes is a confirmation."""

    yes: int
    no: int
    unsure: int

    @property
    def charts(self) -> int:
        """Number of charts with a verdict."""
        return self.yes + self.no + self.unsure

    @property
    def public_share(self) -> tuple[float, int] | tuple[None, None]:
        """Confirmed share, in tenths, and number of charts. Both are None below ten charts."""
        if self.charts < LEAST_CHARTS:
            return None, None
        return round(self.yes / self.charts, 1), self.charts

    def __str__(self) -> str:
        """Return text for the hospital, with Wilson's 95 % interval of the share."""
        from scipy.stats import binomtest  # noqa: PLC0415 - slow to import

        text = f"{self.yes} of {self.charts} charts confirmed"
        if self.unsure:
            text += f"; {self.unsure} unsure"
        if self.charts < LEAST_CHARTS:
            return f"{text}; too few for a share (needs {LEAST_CHARTS})"
        low, high = binomtest(self.yes, self.charts).proportion_ci(method="wilson")
        share = self.yes / self.charts
        return f"{text}: {share:.0%} (95 % interval {low:.0%} to {high:.0%})"


@dataclass(frozen=True)
class Verdicts:
    """A completed sheet: verdicts on patients with the highest scores, and near the threshold."""

    phenotype: int
    highest: Tally
    near: Tally
    decision: str
    name: str


def write_sheet(
    folder: Path,
    site: SiteData,
    number: int,
    out: Path,
    *,
    patients: int = 20,
    seed: int | None = None,
) -> Path:
    """Write the `new_files` of a review, which only their owner can read. Return ``OUT.csv``.

    Half of the patients have the highest scores, and the others are nearest to the threshold on
    both sides. `seed` determines the random order.
    """
    sheet, page, key = new_files(folder, out)
    model = GlobalModel.read(folder)
    if not 1 <= number <= model.rank:
        raise SettingsError(f"--phenotype: must be 1 to {model.rank}, got {number}")
    if patients < LEAST_PATIENTS:
        raise SettingsError(f"--patients: must be {LEAST_PATIENTS} or more, got {patients}")
    memberships = model.memberships(site)
    scores = np.abs(memberships.scores[:, number - 1])
    rows, near = _chosen(scores, patients, np.random.default_rng(seed))
    names = [memberships.patients[row] for row in rows]
    charts = tuple(map(Chart, names, np.round(scores[rows], 4).tolist(), near))
    title = titles(model)[number]
    content = {
        "number": number,
        "title": title,
        "sheet": sheet.name,
        "run": folder,
        "whole": WHOLE,
        "first": _FIRST,
        "codes_of": {
            mode: [(row.code, row.description) for row in leading(rows)]
            for mode, rows in model.codes_by_mode()[number].items()
        },
        "charts": [(name, _record(site, row)) for name, row in zip(names, rows, strict=True)],
    }
    write_json(key, asdict(Key(digest(folder), number, charts)))
    write_page(page, "review.html.j2", content)
    lines = [(str(chart), name, "", "") for chart, name in enumerate(names, start=1)]
    write_csv(sheet, CHART_COLUMNS, [(NOTE, ABOUT, "", ""), *lines, (WHOLE, title, "", "")])
    return sheet


def read_sheet(folder: Path, sheet: Path) -> Verdicts:
    """Count a sheet's verdicts, with the key beside it. Errors quote no verdict or identifier."""
    key = read_key(sheet.with_suffix(KEY), Key, folder)
    charts = {str(number): chart for number, chart in enumerate(key.charts, start=1)}
    given: dict[bool, list[str]] = {False: [], True: []}
    decision, name, seen = "", "", set()
    for line, row in filled_lines(sheet, CHART_COLUMNS):
        where, verdict = f"{sheet}, line {line}", row["verdict"].lower()
        if row["chart"] in seen:
            raise DataError(f"{where}: this chart is listed twice; keep one of the two lines")
        seen.add(row["chart"])
        allowed = DECISIONS if row["chart"] == WHOLE else VERDICTS
        if verdict and verdict not in allowed:
            raise DataError(f"{where}: verdict must be {', '.join(sorted(allowed))} or empty")
        if row["chart"] == WHOLE:
            decision, name = verdict, row["comment"]
            continue
        chart = charts.get(row["chart"])
        if chart is None or _bare(chart.patient) != _bare(row["patient"]):
            raise DataError(f"{where}: this patient is not in the sheet as it was made; see its "
                            "page for the number and identifier of every chart")  # fmt: skip
        given[chart.near].append(verdict)
    highest, near = (Tally(*map(given[group].count, VERDICTS)) for group in (False, True))
    return Verdicts(key.phenotype, highest, near, decision, name)


def apply_verdicts(folder: Path, found: Verdicts) -> None:
    """Record a decision in the run's ``names.toml``, with shares of ten charts or more."""
    rank = GlobalModel.read(folder).rank
    if found.decision == "name":
        if not found.name:
            raise DataError(f"name: write it in the line {WHOLE!r}, in the column comment")
        write_name(folder, found.phenotype, found.name, rank)
    shares = (*found.highest.public_share, *found.near.public_share)
    review = Review("drop" if found.decision == "drop" else "keep", *shares)
    write_review(folder, found.phenotype, review, rank)


def _chosen(
    scores: NDArray[np.floating[Any]], patients: int, rng: np.random.Generator
) -> tuple[list[int], list[bool]]:
    """Return the sheet's rows, one per patient, and whether each is near the threshold."""
    order = rng.permutation(len(scores))  # breaks ties at random
    order = order[np.argsort(-scores[order], kind="stable")]
    have = int(has_phenotype(scores).sum())
    less = int(np.count_nonzero(scores)) - have
    most = min(4 * have // 3, 4 * less + 3)
    if patients > most:
        raise DataError(
            f"--patients: {patients} is too many: of this site's patients {have} have the "
            f"phenotype and {less} have less of it; "
            + (f"ask for {most} or fewer" if most >= LEAST_PATIENTS else "choose another phenotype")
        )
    highest, below = patients - patients // 2, patients // 4
    above = patients // 2 - below
    rows = np.append(order[:highest], order[have - above : have + below])
    shuffled = rng.permutation(len(rows))
    return rows[shuffled].tolist(), (shuffled >= highest).tolist()


def _record(site: SiteData, row: int) -> dict[str, list[tuple[str, str]]]:
    """Return a patient's codes by mode, with their descriptions, largest weight first."""
    mine = site.tensor.indices[:, 0] == row
    cells, values = site.tensor.indices[mine, 1:], site.tensor.values[mine]
    record = {}
    for mode, vocabulary in enumerate(site.vocabularies):
        weights = np.bincount(cells[:, mode], values, len(vocabulary))
        order = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
        record[vocabulary.name] = [(vocabulary.codes[a], vocabulary.descriptions[a]) for a in order]
    return record


def _bare(patient: str) -> str:
    """Remove leading characters that a spreadsheet may add to an identifier or drop from it."""
    return patient.strip().lstrip("'0")
