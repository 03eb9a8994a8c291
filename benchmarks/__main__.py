"""Run all benchmarks: ``python -m benchmarks [--scale full|quick|smoke] [--out FOLDER]``.

All measurements come from the same run on one core, so that ratios compare like with like.
"""

import argparse
import time
from pathlib import Path

from threadpoolctl import threadpool_limits

from benchmarks import (
    federation,
    kernel,
    machine,
    peers,
    plot,
    private,
    processes,
    reading,
    rows,
    scaling,
    secure,
    solver,
)
from benchmarks.scale import SCALES

_SECTIONS = (processes, solver, kernel, peers, private, secure, scaling, federation, reading)
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print the table, and write ``bench.json``, ``machine.json`` and ``bench.png``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for the results")
    options = parser.parse_args()
    scale = SCALES[options.scale]
    began, before = time.perf_counter(), machine.describe()
    machine.show(before)
    found: list[rows.Row] = []
    with threadpool_limits(1):
        tensors = scale.tensors()
        for section in _SECTIONS:
            print(f"# {section.__name__.rpartition('.')[2]} ...", flush=True)
            found += section.measure(tensors, scale, found)
    rows.show(found)
    after = machine.load()
    machine.warn_if_busy(found, before["load"])
    options.out.mkdir(parents=True, exist_ok=True)
    seconds = time.perf_counter() - began
    rows.write(options.out / "bench.json", found)
    facts = before | {"load_after": after, "scale": scale.name, "seconds": seconds}
    rows.write(options.out / "machine.json", facts)
    plot.draw(options.out / "bench.png", found, before)
    print(f"{seconds:.0f} s; rows, machine and plot in {options.out}")


if __name__ == "__main__":
    main()
