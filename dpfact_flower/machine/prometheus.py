"""Metrics for Prometheus, in a text file for node_exporter's textfile collector."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dpfact_flower.machine.files import replacing


class Gauge(NamedTuple):
    """A metric's values, each with its labels. `kind` is ``gauge`` or ``counter``."""

    name: str
    help: str
    values: Sequence[tuple[Mapping[str, str], float]]
    kind: str = "gauge"


def gauge(name: str, text: str, value: float, **labels: str) -> Gauge:
    """Return a gauge with one value."""
    return Gauge(name, text, [(labels, value)])


def exposition(gauges: Iterable[Gauge]) -> str:
    """Return the metrics in Prometheus' text format."""
    lines = []
    for gauge in gauges:
        name = f"dpfact_{gauge.name}"
        lines += [f"# HELP {name} {gauge.help}", f"# TYPE {name} {gauge.kind}"]
        for labels, value in gauge.values:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{f'{{{inside}}}' if inside else ''} {value:.10g}")
    return "".join(f"{line}\n" for line in lines)


def write_exposition(path: Path, gauges: Iterable[Gauge]) -> None:
    """Write gauges to a file that everybody may read. The collector runs as another user."""
    with replacing(path, durable=False) as file:
        file.write(exposition(gauges).encode())
        os.fchmod(file.fileno(), 0o644)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
