"""``python -m laboratory.campaign``: many runs with faults, and a table of how they ended."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from dpfact_flower.audit.target import scratch_folder
from laboratory.campaign.deployed import deployment
from laboratory.campaign.real import carry_out_real, drawn_real
from laboratory.campaign.scenario import Outcome, carry_out, drawn
from tests.conftest import make_cohort


def main() -> int:
    """Carry out scenarios; 1 if anything happened in one that must not."""
    parser = argparse.ArgumentParser(prog="python -m laboratory.campaign", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--real", type=int, default=0,
        help="in place of these, so many runs between real processes; minutes each",
    )  # fmt: skip
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of what runs in the background
    began, many, done = time.perf_counter(), asked.real or asked.scenarios, []
    seeds = range(asked.seed, asked.seed + many)
    try:
        with suppress(KeyboardInterrupt):  # then of what is done
            for outcome in _real(seeds) if asked.real else _simulated(seeds):
                done.append(outcome)
    finally:
        print(real_table(seeds, done) if asked.real else table(done))
    bad = sum(bool(outcome.problems) for outcome in done)
    print(f"{len(done)} scenarios in {time.perf_counter() - began:.0f} s; {bad} with problems")
    return 1 if bad else 0


def _simulated(seeds: Iterable[int]) -> Iterator[Outcome]:
    cohort = make_cohort()
    for seed in seeds:
        with scratch_folder() as folder:
            outcome = carry_out(drawn(seed), cohort, Path(folder))
        yield _told(seed, outcome)


def _real(seeds: Iterable[int]) -> Iterator[Outcome]:
    with TemporaryDirectory() as name, deployment(make_cohort(), folder := Path(name)) as made:
        for seed in seeds:
            scenario, began = drawn_real(seed), time.perf_counter()
            print(f"seed {seed}: {scenario.mode}, {scenario.words}", flush=True)
            outcome = carry_out_real(scenario, made, folder)
            seconds = f"{time.perf_counter() - began:.0f} s"
            print(f"  {_row(seed, outcome)}\n  {seconds}", flush=True)
            yield _told(seed, outcome)


def _told(seed: int, outcome: Outcome) -> Outcome:
    for problem in outcome.problems:
        print(f"PROBLEM seed {seed}: {problem}; {', '.join(outcome.happened)}", flush=True)
    return outcome


def real_table(seeds: Iterable[int], done: Iterable[Outcome]) -> str:
    """One line for each run between real processes."""
    heads = ("seed", "what happened", "how the run ended", "gone on with", "charged, not used")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(_row(*each) for each in zip(seeds, done, strict=False))])


def _row(seed: int, outcome: Outcome) -> str:
    happened = "; ".join(outcome.happened) or "nothing: it was over before"
    end = f"{outcome.end}: {outcome.why}" if outcome.why else outcome.end
    again = "" if outcome.starts == 1 else "PROBLEMS" if outcome.problems else "finished"
    words = (f"{seed}, {drawn_real(seed).mode}", happened, end, again, outcome.unused)
    return f"| {' | '.join(map(str, words))} |"


def table(done: Iterable[Outcome]) -> str:
    """One line for each kind of fault: how often it happened, and how its runs ended."""
    runs: dict[str, Counter[str]] = defaultdict(Counter)
    times: Counter[str] = Counter()
    for outcome in done:
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
