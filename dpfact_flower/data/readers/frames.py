"""Read events from pandas, polars, Arrow or DuckDB frames, with the same checks as `event_tables`.

A frame has the columns of an event table, and optionally a column ``site``. Pass one frame for each
feature mode, or a single frame with a column ``mode``.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpfact_flower.data.clinical_events import Options
from dpfact_flower.data.readers import event_tables
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import Rows, check_columns, columns_of, connect, literal, quoted
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.settings import check_name

_logger = logging.getLogger(__name__)
MODE, SITE = "mode", event_tables.SITE


def holds_events(given: Any) -> bool:
    """Return whether an object is a DataFrame with the columns ``patient`` and ``code``."""
    return _columns(given).keys() >= {"patient", "code"}


def read_events(
    events: Any,
    name: str = "own",
    *,
    columns: Mapping[str, str] | None = None,
    time_format: str = "",
    window_days: int | None = 30,
    labels: Any = None,
    **options: Any,
) -> Cohort:
    """Read DataFrames of events into one tensor per site.

    `name` is the name of the single site, or of the cohort if there is a column ``site``. `columns`
    maps the standard column names, including ``mode`` and ``site``, to the frames' own names, as in
    ``{"code": "icd_code"}``. `labels` is a frame with the columns ``patient`` and ``died``. For
    labels other than ``died``, pass a dict from label names to frames. Each frame has the column
    ``patient`` and a column named after the label. `event_tables` explains the other arguments.
    """
    roles = {role: str(name) for role, name in dict(columns or {}).items()}
    renamed = {role: roles.pop(role).strip() for role in (MODE, SITE) if role in roles}
    mode_column, site_column = renamed.get(MODE, MODE), renamed.get(SITE, SITE)
    parts = list(events.values()) if isinstance(events, Mapping) else [events]
    known = (*event_tables.Columns().names, MODE, SITE)
    needed = ("patient", "code", "time" if window_days else "encounter", MODE, SITE)
    asked = {*({role: role for role in needed} | roles | renamed).values()}
    for frame in parts:
        levels = getattr(getattr(frame, "index", None), "names", ())  # of a pandas frame
        if lost := {*levels} & asked - {*columns_of(frame)}:
            raise DataError(f"events: {min(lost)} is in the index; call reset_index() first")
        check_columns(Rows("events"), [*renamed.values()], columns_of(frame))
    if isinstance(events, Mapping):
        tables = {mode: Rows(mode, [frame]) for mode, frame in events.items()}
    elif mode_column.lower() in _columns(events):
        tables = _by_mode(Rows("events", parts), mode_column, options)
    else:
        raise DataError(
            "events: need a DataFrame with a column mode (or columns={'mode': its name}), or a "
            f'frame for each feature mode, as {{"diagnoses": frame, ...}}; got '
            f"{type(events).__name__} with the columns {columns_of(events)}"
        )
    having = [site_column.lower() in _columns(frame) for frame in parts]
    if any(having) and not all(having):
        raise DataError(f"events: the column {SITE} must be in all modes' frames, or in none")
    by_name = labels if isinstance(labels, Mapping) else {DIED: labels}
    if unknown := roles.keys() - set(known):
        raise SettingsError(f"columns: must be some of {', '.join(known)}; got {min(unknown)}")
    names = event_tables.Columns(**roles)
    return event_tables.read(
        {mode: event_tables.EventTable([rows], names, time_format=time_format)
         for mode, rows in tables.items()},
        name, columns=names, window_days=window_days,
        sites=event_tables.LabelTable(Rows("sites", parts), site_column) if all(having) else None,
        labels={
            label: event_tables.LabelTable(Rows(f"labels of {label}", [frame]))
            for label, frame in by_name.items() if frame is not None
        },
        **options,
    )  # fmt: skip


def read_sites(
    frames: Mapping[str, Any], name: str, *, window_days: int | None, **options: Any
) -> Cohort:
    """Read each site's frame of events into a tensor. Each frame must have a column ``mode``."""
    if any(SITE in _columns(frame) for frame in frames.values()):
        raise DataError(f"sites: each frame is a site, so none may have a column {SITE}")
    for site, frame in frames.items():
        check_name("site name", site)
        if not len(frame):
            raise DataError(f"sites: {site} has no row; leave it out")
    rows = Rows("events", list(frames.values()), sites=list(frames))
    homes = event_tables.LabelTable(rows._replace(name="sites"))
    modes = _by_mode(rows, MODE, options)
    cohort = event_tables.read(modes, name, window_days=window_days, sites=homes, **options)
    for site, frame in frames.items():  # a column that only some frames lack was read as blank
        check_columns(Rows(site), ["time" if window_days else "encounter"], columns_of(frame))
    ids = [tuple(known.partition("/")[2] for known in s.patients or ()) for s in cohort.sites]
    own = (replace(site, patients=known) for site, known in zip(cohort.sites, ids, strict=True))
    report, again = cohort.read_report, sum(map(len, ids)) - len(set().union(*ids))
    if again:
        what = "identifiers repeated at another site; the losses of one person at two sites add up"
        report = (*report, ("patients", what, again))
        _logger.warning("patients: %s: %d", what, again)
    return replace(cohort, sites=tuple(own), read_report=report)


def _columns(frame: Any) -> dict[str, str]:
    """Map the frame's column names, trimmed and in lower case, to the original names."""
    return {name.strip().lower(): name for name in columns_of(frame)}


def _by_mode(events: Rows, column: str, options: Mapping[str, Any]) -> dict[str, Rows]:
    """Return each mode's rows. Modes with a vocabulary come first, in the vocabularies' order."""
    lists = Options(vocabularies=options.get("vocabularies")).vocabularies
    listed = [given.name for given in lists or ()]
    names = {key: name for frame in events.frames for key, name in _columns(frame).items()}
    check_columns(events, [column], names.values())
    text = f"{quoted(names[column.lower()])}::VARCHAR"
    with connect() as connection:
        counts = connection.execute(
            f"""SELECT mode, count(*) FROM
                    (SELECT {text} AS mode, row_number() OVER () AS place
                     FROM {events.sql(connection)})
                GROUP BY mode ORDER BY min(place)"""
        ).fetchall()
    modes = dict(counts)
    if not modes:
        raise DataError("events: has no row")
    if None in modes:
        raise DataError(f"events: column {column} must not be blank; {modes[None]} row(s) are")
    for mode in modes:
        check_name("mode", mode)
    return {
        mode: events._replace(name=mode, where=f"{text} = {literal(mode)}")
        for mode in sorted(modes, key=[*listed, *modes].index)
    }
