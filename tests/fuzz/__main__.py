"""``python -m tests.fuzz``: try many, and say what was met."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from dpfact_flower.audit.subject import scratch_folder
from tests.fuzz.files import damage_files
from tests.fuzz.requests import ask_anything
from tests.fuzz.watch import Watch


def main() -> int:
    """Try what the command line asks for; 1 if anything happened that must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    problems: list[str] = []
    for name, number, work in (
        ("files", asked.files, damage_files),
        ("requests", asked.requests, ask_anything),
    ):
        began = time.perf_counter()
        with scratch_folder() as folder, Watch() as watch:
            work(Path(folder), number, asked.seed, watch)
        seconds = time.perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{number} {name} in {seconds:.0f} s; longest line of the log {watch.longest} bytes; "
              f"at most {memory} MiB of memory so far")  # fmt: skip
        for outcome, times in sorted(watch.seen.items()):
            print(f"  {outcome}: {times}")
        problems += watch.problems
    for problem in problems[:50]:
        print("PROBLEM", problem)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
