"""Measure how fast event tables are read into tensors, and the peak memory.

Two CSV files contain random events with patient, time and code: 22 per patient over four years. For
comparison, a DuckDB scan reads every field of both files and keeps nothing. Unlike in other
measurements, reader and scan use all of DuckDB's threads.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.processes import child
from benchmarks.rows import Row, Timing, ratio
from benchmarks.scale import Scale
from dpfact_flower.tensor import SparseTensor

_MODES = {"procedures": (1 / 3, 2_000), "diagnoses": (2 / 3, 8_000)}
"""Each mode's share of the events, and its number of codes."""
_MEMORY = "500MB"
_TARGET = 1e6
"""Target in events per second, for files with millions, where the time per event is lowest."""


def measure(_: Mapping[str, SparseTensor], scale: Scale, __: Sequence[Row]) -> list[Row]:
    """Return the rows for reading, for the scan, and for memory."""
    target = _TARGET if scale.whole else None
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), scale.events)
        scans = [child("scan", folder) for _ in range(scale.starts)]
        reads = [child("read", folder, "2GB") for _ in range(scale.starts)]
        bounded = child("read", folder, _MEMORY)
    (peer_time, peer_cpu), (own, own_cpu) = (_times(runs) for runs in (scans, reads))
    peer = Row.of(
        "reading: peer, DuckDB's plain scan", peer_time, "s", note=f"CPU {peer_cpu:.2f} s"
    )
    cells = f"{scale.events:,} events, {reads[0]['patients']:,} patients with cells"
    cells += f"; CPU {own_cpu:.2f} s"
    return [
        peer,
        Row.of("reading: events to tensor", own, "s", note=cells),
        Row("reading: events a second", scale.events / own.median, "1/s", target=target,
            at_least=True, repetitions=scale.starts),
        ratio("reading: plain scan / events to tensor", peer, own.median),
        Row("reading: CPU of the plain scan / of events to tensor", peer_cpu / own_cpu, "x",
            repetitions=scale.starts),
        Row("reading: peak memory of 2GB allowed", reads[0]["peak"] / 1e6, "MB",
            note="of it the process before it reads: "
            f"{reads[0]['before'] / 1e6:.0f} MB"),
        Row(f"reading: peak memory of {_MEMORY} allowed", bounded["peak"] / 1e6, "MB",
            note=f"in {bounded['seconds']:.1f} s"),
    ]  # fmt: skip


def _times(runs: Sequence[Mapping[str, float]]) -> tuple[Timing, float]:
    """Return wall times and the median CPU time, which a busy machine affects less."""
    return Timing(tuple(run["seconds"] for run in runs)), median(run["cpu"] for run in runs)


def _write(folder: Path, events: int) -> None:
    import duckdb  # noqa: PLC0415 - sets up threads

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1; SELECT setseed(0.5)")  # the same files in every run
        for mode, (share, codes) in _MODES.items():
            connection.execute(
                f"""COPY (SELECT 100000000 + (random() * {events // 22})::INTEGER AS patient,
                        strftime(TIMESTAMP '2015-01-01'
                            + to_minutes((random() * 1440 * 365 * 4)::INTEGER),
                            '%Y-%m-%d %H:%M:%S') AS time,
                        'C' || lpad(floor({codes} * pow(random(), 3))::INTEGER::VARCHAR, 5, '0')
                            AS code
                    FROM range({round(events * share)}))
                    TO '{folder / mode}.csv' (HEADER)"""
            )
