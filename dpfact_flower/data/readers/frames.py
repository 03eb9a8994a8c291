"""Events in frames of pandas, polars, Arrow or DuckDB: the checks and cells of `event_tables`.

A frame has a row per event and the columns ``patient``, ``code``, and ``time`` or ``encounter``;
``description`` and ``site`` may be there. Either there is one frame for each feature mode, or a
column ``mode`` says which of them an event belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from dpfact_flower.data.readers import event_tables
from dpfact_flower.data.readers.steps import Options
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import Rows, connect
from dpfact_flower.errors import DataError
from dpfact_flower.settings import check_name

MODE, SITE = "mode", event_tables.SITE
_NEEDED = {"patient", "code"}


def holds_events(given: Any) -> bool:
    """Whether something is a DataFrame of events, and not one of a row per patient."""
    return _columns(given) >= _NEEDED


def read(
    events: Any,
    name: str = "own",
    *,
    window_days: int | None = 30,
    labels: Any = None,
    **options: Unpack[Options],
) -> Cohort:
    """Read frames of events into one tensor per site.

    `name` is that of the one site, or, where there is a column ``site``, of the cohort.
    `window_days` and `options` are as in `event_tables.read`. `labels` is a frame of ``patient``
    and ``died``, or a mapping of each label's name to such a frame, with the column of that name.
    """
    if isinstance(events, Mapping):
        frames = {mode: Rows(mode, [frame]) for mode, frame in events.items()}
        parts = list(events.values())
    elif holds_events(events) and MODE in _columns(events):
        frames = {mode: Rows(mode, [events], mode=mode) for mode in _modes(events)}
        parts = [events]
    else:
        raise DataError(
            "events: need a DataFrame with the columns patient, code, mode, or a frame for each "
            "feature mode by its name"
        )
    if window_days is not None and not all("time" in _columns(frame) for frame in parts):
        raise DataError(
            "events: lacks the column(s) time; window_days=None needs an encounter instead"
        )
    having = [SITE in _columns(frame) for frame in parts]
    if any(having) and not all(having):
        raise DataError(f"events: the column {SITE} must be in the frames of all modes, or of none")
    by_name = labels if isinstance(labels, Mapping) else {DIED: labels}
    return event_tables.read(
        frames, name, window_days=window_days,
        sites=Rows("sites", parts) if all(having) else None,
        labels={
            label: event_tables.LabelTable(Rows(f"labels of {label}", [frame]))
            for label, frame in by_name.items() if frame is not None
        },
        **options,
    )  # fmt: skip


def _columns(frame: Any) -> set[str]:
    names = getattr(frame, "column_names", None)  # Arrow's; pandas and polars have columns
    return set(getattr(frame, "columns", ()) if names is None else names)


def _modes(events: Any) -> list[str]:
    """Modes of a frame, in the order in which they first appear; numbers may name them too."""
    with connect() as connection:
        rows = Rows("events", [events]).sql(connection)
        found = connection.execute(
            f"""SELECT mode::VARCHAR FROM (SELECT mode, row_number() OVER () AS place FROM {rows})
                WHERE mode IS NOT NULL GROUP BY mode ORDER BY min(place)"""
        ).fetchall()
    for (mode,) in found:
        check_name("mode", mode)
    return [mode for (mode,) in found]
