"""Events in pandas DataFrames, as `event_tables` reads them from files: the same checks and cells.

A frame has a row per event and the columns ``patient``, ``code``, and ``time`` or ``encounter``;
``description`` and ``site`` may be there. Either there is one frame for each feature mode, or a
column ``mode`` says which of them an event belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dpfact_flower.data.readers import event_tables
from dpfact_flower.data.readers.steps import Options
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import connect, quoted
from dpfact_flower.errors import DataError, shown
from dpfact_flower.machine.files import private_scratch
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

MODE, SITE = "mode", "site"
_NEEDED = ("patient", "code")
_USED = (*_NEEDED, "time", "encounter", "description")
_SITES, _LABELS = ".sites", ".labels of "


def holds_events(given: Any) -> bool:
    """Whether something is a DataFrame of events, and not one of a row per patient."""
    columns = getattr(given, "columns", None)
    return columns is not None and set(_NEEDED) <= set(columns)


def read(
    events: Any,
    name: str = "own",
    *,
    window_days: int | None = 30,
    labels: Any = None,
    **options: Unpack[Options],
) -> Cohort:
    """Read frames of events into one tensor per site.

    Parameters
    ----------
    events : DataFrame with a column ``mode``, or mapping of mode to DataFrame
    name : str
        Name of the one site, or, where there is a column ``site``, of the cohort.
    window_days : int or None
        Largest distance in time between the events of a cell; None: they have the same encounter.
    labels : DataFrame of ``patient`` and ``died``, optional
        Or a mapping of each label's name to such a frame, with the column of that name.
    **options
        `Options` of all readers.

    Raises
    ------
    DataError
        Naming the frame, the column and how many rows are wrong; never a value.
    SettingsError, MissingDependencyError
        As `event_tables.read`.
    """
    frames = _by_mode(events)
    placing = "encounter" if window_days is None else "time"
    for mode, frame in frames.items():
        _check_columns(mode, frame, (*_NEEDED, placing))
    with private_scratch() as place:
        with connect() as connection:
            for mode, frame in frames.items():
                _write(connection, place / mode, frame, [c for c in _USED if c in frame])
            sites = _write_sites(connection, place, frames)
            by_name = labels if isinstance(labels, Mapping) else {DIED: labels}
            tables = {
                label: _write_labels(connection, place, label, frame)
                for label, frame in by_name.items()
                if frame is not None
            }
        try:
            cohort = event_tables.read(
                {mode: _file(place / mode) for mode in frames}, name,
                window_days=window_days, sites=_file(place / _SITES) if sites else None,
                labels=tables, **options,
            )  # fmt: skip
        except DataError as error:  # it names files that nobody else has seen
            raise DataError(_unfiled(str(error).replace(f"{place}/", ""))) from None
        account = tuple((_unfiled(where), what, count) for where, what, count in cohort.account)
        return replace(cohort, account=account)


def _unfiled(text: str) -> str:
    """Text that names frames where it named the files that they were written to."""
    return text.replace(".parquet", "").replace(_SITES, "sites").replace(".labels", "labels")


def _by_mode(events: Any) -> dict[str, Any]:
    """A frame of each feature mode, in the order given or in which the modes first appear."""
    if isinstance(events, Mapping):
        frames = dict(events)
    elif not holds_events(events) or MODE not in events:
        raise DataError(
            f"events: need a DataFrame with the columns {', '.join((*_NEEDED, MODE))}, or a frame "
            "for each feature mode by its name"
        )
    else:
        # Numbers too may name modes.
        frames = {str(mode): frame for mode, frame in events.groupby(MODE, sort=False)}
    for mode in frames:
        check_name("mode", mode)
    return frames


def _check_columns(what: str, frame: Any, needed: Sequence[str]) -> None:
    columns = list(getattr(frame, "columns", ()))
    missing = [column for column in needed if column not in columns]
    if missing:
        other = "; window_days=None needs an encounter instead" * ("time" in missing)
        raise DataError(
            f"{what}: lacks the column(s) {', '.join(missing)}{other}; it has {shown(columns)}"
        )
    if twice := [name for name in {*needed, *_USED, SITE} if columns.count(name) > 1]:
        raise DataError(f"{what}: has the column {min(twice)} twice; rename one of them")


def _write_sites(connection: Connection, place: Path, frames: Mapping[str, Any]) -> bool:
    """One row for each patient and site, where the frames name sites."""
    having = [SITE in frame for frame in frames.values()]
    if not any(having):
        return False
    if not all(having):
        raise DataError(f"events: the column {SITE} must be in the frames of all modes, or of none")
    parts = []
    for number, frame in enumerate(frames.values()):
        connection.register(f"frame_{number}", frame)
        parts.append(
            f"SELECT patient::VARCHAR AS patient, site::VARCHAR AS site FROM frame_{number}"
        )
    _copy(connection, " UNION ".join(parts), place / _SITES)
    return True


def _write_labels(
    connection: Connection, place: Path, label: str, frame: Any
) -> event_tables.LabelTable:
    _check_columns("labels", frame, ("patient", label))
    check_name("label", label)
    _write(connection, place / f"{_LABELS}{label}", frame, ["patient", label])
    return event_tables.LabelTable(_file(place / f"{_LABELS}{label}"), label)


def _write(connection: Connection, path: Path, frame: Any, columns: Sequence[str]) -> None:
    connection.register("frame", frame)
    _copy(connection, f"SELECT {', '.join(map(quoted, columns))} FROM frame", path)


def _copy(connection: Connection, query: str, path: Path) -> None:
    connection.execute(f"COPY ({query}) TO '{_file(path)}' (FORMAT parquet)")


def _file(path: Path) -> Path:
    return path.with_name(f"{path.name}.parquet")
