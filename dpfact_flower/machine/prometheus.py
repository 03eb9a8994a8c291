"""Write metrics for Prometheus to a text file for node_exporter's textfile collector."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dpfact_flower.machine.files import replacing


class Gauge(NamedTuple):
    """A metric's values with their labels. Job and site names in labels need no escaping."""

    name: str
    help: str
    values: Sequence[tuple[Mapping[str, str], float]]


def exposition(gauges: Iterable[Gauge]) -> str:
    """Return the gauges in Prometheus' text format."""
    lines = []
    for name, text, values in gauges:
        lines += [f"# HELP dpfact_{name} {text}\n", f"# TYPE dpfact_{name} gauge\n"]
        for labels, value in values:
            inside = ",".join(f'{label}="{own}"' for label, own in labels.items())
            lines.append(f"dpfact_{name}{{{inside}}} {value:.10g}\n")
    return "".join(lines)


def write_exposition(path: Path, gauges: Iterable[Gauge]) -> None:
    """Write gauges to a world-readable file, because the collector runs as another user."""
    with replacing(path, durable=False) as file:
        file.write(exposition(gauges).encode())
        os.fchmod(file.fileno(), 0o644)
