"""Write sheets for chart reviews of phenotypes, and read the completed sheets.

A review's sheet (CSV) and page (HTML) list individual patients in random order. A separate key file
contains the patients' scores. No privacy guarantee covers a review's files, so the files must stay
at the hospital. The run folder receives the review's decision and the phenotype's name. For each
half of the charts (see `write_sheet`) with ten or more verdicts, the folder also receives the
number of verdicts and the rounded share of confirmed charts.
"""

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError, SettingsError, plural
from dpfact_flower.evaluation import run_folder
from dpfact_flower.evaluation.membership import has_phenotype
from dpfact_flower.evaluation.model import GlobalModel, write_csv
from dpfact_flower.evaluation.page import library, write_page
from dpfact_flower.evaluation.prose import leading, titles
from dpfact_flower.machine.parsed import parse_as

_NOTE = "note"
"""First cell of a line that explains the sheet."""
_KEY = ".key.json"
_CHART_COLUMNS = ("chart", "patient", "verdict", "comment")
_LEAST_CHARTS = 10
"""Minimum number of charts for which a share may leave the site."""
_LEAST_PATIENTS = 4
_VERDICTS, _DECISIONS = ("yes", "no", "unsure"), ("keep", "drop", "name")
_WHOLE = "phenotype"  # first cell of the line with the decision about the phenotype
_ABOUT = "About individual patients: keep this at the hospital. No privacy guarantee covers it."


@dataclass(frozen=True)
class SheetKey:
    """Base class for key files of reviews and surveys. `model` is the run's `digest`."""

    model: str


K = TypeVar("K", bound=SheetKey)


@dataclass(frozen=True)
class Chart:
    """A reviewed patient. `near` is true if the patient's score is near the threshold."""

    patient: str
    score: float
    near: bool


@dataclass(frozen=True)
class Key(SheetKey):
    """A chart review's key file, which lists the reviewed patients and their scores."""

    phenotype: int
    charts: tuple[Chart, ...]
    note: str = _ABOUT


@dataclass(frozen=True)
class Tally:
    """The number of charts with each verdict. Only ``yes`` confirms the phenotype."""

    yes: int
    no: int
    unsure: int

    @property
    def charts(self) -> int:
        """Number of charts with a verdict."""
        return self.yes + self.no + self.unsure

    @property
    def public_share(self) -> tuple[float, int] | tuple[None, None]:
        """The rounded share of confirmed charts, and the number of charts. None for under ten."""
        if self.charts < _LEAST_CHARTS:
            return None, None
        return round(self.yes / self.charts, 1), self.charts

    def __str__(self) -> str:
        """Describe the counts, with a Wilson 95 % interval for the share of confirmed charts."""
        text = f"{self.yes} of {plural(self.charts, 'chart')} confirmed"
        if self.unsure:
            text += f"; {self.unsure} unsure"
        if self.charts < _LEAST_CHARTS:
            return f"{text}; too few for a percentage (needs {_LEAST_CHARTS})"
        low, high = binomtest(self.yes, self.charts).proportion_ci(method="wilson")
        share = self.yes / self.charts
        return f"{text}: {100 * share:.0f} % (95 % interval {100 * low:.0f} to {100 * high:.0f} %)"


@dataclass(frozen=True)
class Verdicts:
    """A completed sheet. `near` counts the verdicts on patients with a score near the threshold."""

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
    """Write a review's sheet, page and key, readable only by their owner. Return the sheet's path.

    Half of the chosen patients have the highest scores at the site. The other half have scores just
    above or just below the threshold for having the phenotype. `seed` determines the random order.
    """
    sheet, page, key = new_files(folder, out)
    model = GlobalModel.read(folder)
    if not 1 <= number <= model.rank:
        raise SettingsError(f"--phenotype: must be 1 to {model.rank}, got {number}")
    if patients < _LEAST_PATIENTS:
        raise SettingsError(f"--patients: must be {_LEAST_PATIENTS} or more, got {patients}")
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
        "whole": _WHOLE,
        "first": 8,  # codes of each mode, before the reader unfolds the list
        "codes_of": {
            mode: [(row.code, row.description) for row in leading(rows)]
            for mode, rows in model.codes_by_mode()[number].items()
        },
        "charts": [(name, _record(site, row)) for name, row in zip(names, rows, strict=True)],
    }
    run_folder.write_json(key, Key(digest(folder), number, charts))
    write_page(page, "review.html.j2", content)
    lines = [(str(chart), name, "", "") for chart, name in enumerate(names, start=1)]
    write_csv(sheet, _CHART_COLUMNS, [(_NOTE, _ABOUT, "", ""), *lines, (_WHOLE, title, "", "")])
    return sheet


def read_sheet(folder: Path, sheet: Path) -> Verdicts:
    """Read a completed sheet and its key file. Error messages quote no verdict or identifier."""
    key = read_key(sheet.with_suffix(_KEY), Key, folder)
    charts = {str(number): chart for number, chart in enumerate(key.charts, start=1)}
    given: dict[bool, list[str]] = {False: [], True: []}
    decision, name = "", ""
    for where, row in filled_lines(sheet, _CHART_COLUMNS):
        verdict = row["verdict"].lower()
        allowed = _DECISIONS if row["chart"] == _WHOLE else _VERDICTS
        if verdict and verdict not in allowed:
            raise DataError(f"{where}: verdict must be {', '.join(sorted(allowed))} or empty")
        if row["chart"] == _WHOLE:
            decision, name = verdict, " ".join(row["comment"].split())
            continue
        chart = charts.get(row["chart"])
        if chart is None or _bare(chart.patient) != _bare(row["patient"]):
            raise DataError(f"{where}: the original sheet has no such chart and patient; see its "
                            "page for the number and identifier of every chart")  # fmt: skip
        given[chart.near].append(verdict)
    highest, near = (Tally(*map(given[group].count, _VERDICTS)) for group in (False, True))
    return Verdicts(key.phenotype, highest, near, decision, name)


def apply_verdicts(folder: Path, verdicts: Verdicts) -> None:
    """Write a review's decision, rounded results and any new phenotype name to ``names.toml``."""
    if verdicts.decision == "name" and not verdicts.name:
        raise DataError(f"name: write the name in the line {_WHOLE!r}, in the column comment")
    names = {verdicts.phenotype: verdicts.name} if verdicts.decision == "name" else {}
    shares = (*verdicts.highest.public_share, *verdicts.near.public_share)
    review = run_folder.Review("drop" if verdicts.decision == "drop" else "keep", *shares)
    run_folder.write_names(folder, run_folder.Names(names, {verdicts.phenotype: review}))


def _chosen(
    scores: NDArray[np.floating[Any]], patients: int, rng: np.random.Generator
) -> tuple[list[int], list[bool]]:
    """Return the chosen patients' rows in random order, and a mask of scores near the threshold."""
    order = rng.permutation(len(scores))  # breaks ties at random
    order = order[np.argsort(-scores[order], kind="stable")]
    have = int(has_phenotype(scores).sum())
    less = int(np.count_nonzero(scores)) - have
    most = min(4 * have // 3, 4 * less + 3)
    if patients > most:
        fewer = f"ask for {most} or fewer"
        raise DataError(
            f"--patients: {patients} is too many: {have} of this site's patients have the "
            f"phenotype and {less} have a lower score; "
            f"{fewer if most >= _LEAST_PATIENTS else 'choose another phenotype'}"
        )
    highest, below = patients - patients // 2, patients // 4
    above = patients // 2 - below
    rows = np.append(order[:highest], order[have - above : have + below])
    shuffled = rng.permutation(len(rows))
    return rows[shuffled].tolist(), (shuffled >= highest).tolist()


def _record(site: SiteData, row: int) -> dict[str, list[tuple[str, str]]]:
    """Return a patient's codes and their descriptions for each mode, most frequent code first."""
    mine = site.tensor.indices[:, 0] == row
    cells, values = site.tensor.indices[mine, 1:], site.tensor.values[mine]
    record = {}
    for mode, vocabulary in enumerate(site.vocabularies):
        weights = np.bincount(cells[:, mode], values, len(vocabulary))
        order = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
        record[vocabulary.name] = [(vocabulary.codes[a], vocabulary.descriptions[a]) for a in order]
    return record


def _bare(patient: str) -> str:
    """Remove an identifier's leading apostrophes and zeros, which spreadsheets may add or drop."""
    return patient.strip().lstrip("'0")


def new_files(folder: Path, out: Path) -> list[Path]:
    """Return the paths of a sheet, page and key (`out` plus ``.csv``, ``.html``, ``.key.json``).

    Raise an error if one of the three files exists, or if `out` is in the run's `folder`.
    """
    library("jinja2")
    files = [out.with_name(out.name + part) for part in (".csv", ".html", _KEY)]
    if out.resolve().parent.is_relative_to(folder.resolve()):
        raise SettingsError("--out: is in the run's folder, which others may read; write elsewhere")
    for file in files:
        if file.exists():
            raise SettingsError(f"--out: {file} exists and may contain verdicts; name another file")
    return files


def digest(folder: Path) -> str:
    """Return the SHA-256 digest of a run's model file."""
    return hashlib.sha256((folder / run_folder.MODEL).read_bytes()).hexdigest()


def read_key(path: Path, kind: type[K], folder: Path) -> K:
    """Read a sheet's key file, and check that the file belongs to the run in `folder`."""
    if not path.exists():
        raise DataError(f"{path}: no such file; it was written together with the sheet (see --out)")
    key = run_folder.read_json_as(path, partial(parse_as, kind))
    if key.model != digest(folder):
        raise DataError(f"{path}: belongs to a run other than {folder}")
    return key


def filled_lines(sheet: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location and the cells of each line. Skip blank lines and notes.

    Detect the file's separator and encoding. Raise an error if two lines have the same first cell.
    """
    try:
        content = sheet.read_bytes()
    except OSError as error:
        raise DataError(f"{sheet}: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    delimiter = ";" if ";" in next(iter(text.splitlines()), "") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    seen = set()
    try:
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise DataError(f"{sheet}: lacks the column {missing[0]}; need {', '.join(columns)}")
        for row in reader:
            cells = {name: (row[name] or "").strip() for name in columns}
            first, where = cells[columns[0]], f"{sheet}, line {reader.line_num}"
            if not any(cells.values()) or first == _NOTE:
                continue
            if first in seen:
                raise DataError(f"{where}: this {columns[0]} is listed twice")
            seen.add(first)
            yield where, cells
    except csv.Error:
        raise DataError(f"{sheet}: not readable as CSV") from None
