"""Finished runs as a page: side by side, phenotype by phenotype, epsilon against quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfact_flower.errors import SettingsError
from dpfact_flower.evaluation.beside import Beside, Pair, beside, protection
from dpfact_flower.evaluation.cards import titles
from dpfact_flower.evaluation.comparison import columns
from dpfact_flower.evaluation.names import read_names
from dpfact_flower.evaluation.nothing import nothing_learned
from dpfact_flower.evaluation.page import belonging, check_libraries, render, svg
from dpfact_flower.evaluation.run_folder import read_model, read_summary
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.machine.files import replacing


@dataclass(frozen=True)
class _Run:
    folder: Path
    name: str
    summary: Summary
    modes: tuple[str, ...]

    @property
    def nothing(self) -> str:
        return nothing_learned(self.summary)


@dataclass(frozen=True)
class _Row:
    """A phenotype of the first run, and its partner in each of the others."""

    number: int
    title: str
    partners: tuple[tuple[Pair, str] | None, ...]


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write a page about several finished runs.

    The phenotypes of the first run are looked for in each of the others.

    Parameters
    ----------
    folders : sequence of Path
        Of finished runs, simulated or deployed; the first is what others are compared with.
    out : Path
        The page.

    Returns
    -------
    Path
        The page, readable by its owner alone.

    Raises
    ------
    SettingsError
        If there is no folder to write to.
    DataError
        If a folder holds no finished run, or a file of it is damaged.
    MissingDependencyError
        If matplotlib or Jinja2 is not installed.
    """
    check_libraries()
    if not out.absolute().parent.is_dir():
        raise SettingsError(f"--out: there is no folder {out.parent}")
    runs = _read(folders)
    with belonging(folders[0]):
        page = render("compare.html.j2", _content(runs))
    with replacing(out) as file:
        file.write(page)
    return out


def _read(folders: Sequence[Path]) -> list[_Run]:
    """Runs, each with a name that no other has."""
    names = [folder.resolve().name for folder in folders]
    counts = Counter(names)
    return [
        _Run(
            folder,
            name if counts[name] == 1 else f"{folder.resolve().parent.name}/{name}",
            read_summary(folder),
            tuple(v.name for v in read_model(folder)[1]),
        )
        for folder, name in zip(folders, names, strict=True)
    ]


def _content(runs: Sequence[_Run]) -> dict[str, Any]:
    from dpfact_flower.evaluation.tradeoff import (  # noqa: PLC0415 - matplotlib is slow to import
        measured_qualities,
        tradeoff,
    )

    first, *others = runs
    alike = [run for run in others if run.modes == first.modes and not run.nothing]
    found = () if first.nothing else beside(first.folder, [run.folder for run in alike])
    summaries = {run.name: run.summary for run in runs}
    qualities = measured_qualities(summaries)
    draw = lambda: tradeoff(summaries)  # noqa: E731
    return {
        "runs": runs,
        "first": first,
        "columns": {run.name: columns(run.summary) for run in runs},
        "protection": {run.name: protection(run.summary) for run in runs},
        "alike": alike,
        "left_out": [run for run in others if run not in alike],
        "rows": _rows(first, alike, found),
        "beside": found,
        "qualities": qualities,
        "figure": svg("tradeoff", draw, "Quality against epsilon") if qualities else None,
    }


def _rows(first: _Run, others: Sequence[_Run], found: Sequence[Beside]) -> list[_Row]:
    """One for each phenotype of the first run, if any other is compared with it."""
    if not found:
        return []
    own = _titles(first)
    named = [_titles(run) for run in others]
    return [
        _Row(
            number, text, tuple(_partner(number, *pair) for pair in zip(found, named, strict=True))
        )
        for number, text in own.items()
    ]


def _partner(number: int, run: Beside, named: dict[int, str]) -> tuple[Pair, str] | None:
    pair = next((pair for pair in run.pairs if pair.number == number), None)
    return (pair, named[pair.other]) if pair else None


def _titles(run: _Run) -> dict[int, str]:
    return titles(run.folder, read_names(run.folder, run.summary.rank))
