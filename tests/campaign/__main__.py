"""``python -m tests.campaign``: many runs with faults, and a table of how they ended."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from dpfact_flower.audit.subject import scratch_folder
from tests.campaign.scenario import Outcome, Scenario, carry_out, drawn
from tests.conftest import make_cohort


def main() -> int:
    """Carry out scenarios; 1 if anything happened in one that must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    cohort, began = make_cohort(), time.perf_counter()
    done: list[tuple[Scenario, Outcome]] = []
    for seed in range(asked.seed, asked.seed + asked.scenarios):
        with scratch_folder() as folder:
            scenario = drawn(seed)
            outcome = carry_out(scenario, cohort, Path(folder))
        done.append((scenario, outcome))
        for problem in outcome.problems:
            print(f"PROBLEM seed {seed}: {problem}; {', '.join(outcome.happened)}", flush=True)
    print(table(done))
    bad = sum(bool(outcome.problems) for _, outcome in done)
    print(f"{len(done)} scenarios in {time.perf_counter() - began:.0f} s; {bad} with problems")
    return 1 if bad else 0


def table(done: list[tuple[Scenario, Outcome]]) -> str:
    """One line for each kind of fault: how often it happened, and how its runs ended."""
    runs: dict[str, Counter[str]] = defaultdict(Counter)
    times: Counter[str] = Counter()
    for _, outcome in done:
        kinds = [what.partition(": ")[2] or what for what in outcome.happened]
        times.update(kinds)
        for kind in {*kinds} or {"none"}:
            runs[kind][outcome.end] += 1
            runs[kind]["unused"] += outcome.unused
    heads = (
        "fault", "times", "finished", "ended with an error, and finished when gone on with",
        "charged releases not used",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for kind, ends in sorted(runs.items()):
        other = sum(n for end, n in ends.items() if end not in ("finished", "unused"))
        lines.append(
            f"| {kind} | {times[kind]} | {ends['finished']} | {other} | {ends['unused']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
