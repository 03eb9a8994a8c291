"""Carry out many runs with faults, and print how they ended: ``python -m laboratory.campaign``."""

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

from laboratory.campaign.deployed import deployment
from laboratory.campaign.real import carry_out_real, drawn_real
from laboratory.campaign.scenario import Outcome, carry_out, drawn
from tests.conftest import ALL_SURROGATES, make_cohort


def main() -> int:
    """Run scenarios. Return 1 if any scenario violated a condition."""
    parser = argparse.ArgumentParser(prog="python -m laboratory.campaign", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--real", type=int, default=0,
        help="in place of these, so many runs between real processes; minutes each",
    )  # fmt: skip
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also in the background
    began, many, done = time.perf_counter(), asked.real or asked.scenarios, list[Outcome]()
    seeds = range(asked.seed, asked.seed + many)
    with suppress(KeyboardInterrupt):  # then print the finished runs
        for seed, outcome in _real(seeds) if asked.real else _simulated(seeds):
            done.append(outcome)
            if asked.real or outcome.problems:
                print(f"{seed}: {outcome}", flush=True)
    print(table(done))
    bad = sum(bool(outcome.problems) for outcome in done)
    print(f"{len(done)} scenarios in {time.perf_counter() - began:.0f} s; {bad} with problems")
    return 1 if bad else 0


def _simulated(seeds: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
    cohort = make_cohort()
    for seed in seeds:
        with TemporaryDirectory() as folder:
            yield seed, carry_out(drawn(seed), cohort, Path(folder))


def _real(seeds: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
    for module, name, number in ALL_SURROGATES:  # the expected model needs as many as deployed runs
        setattr(module, name, number)
    with TemporaryDirectory() as name, deployment(make_cohort(), folder := Path(name)) as made:
        for seed in seeds:
            yield seed, carry_out_real(drawn_real(seed), made, folder)


def table(done: Iterable[Outcome]) -> str:
    """Return a line for each kind of fault: how often it happened, and how runs with it ended."""
    runs: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in done:
        kinds = Counter(what.partition(": ")[2] or what for what in outcome.happened)
        for kind, times in (kinds or {"none": 0}).items():
            ended = "finished" if outcome.end == "finished" else "went on"
            runs[kind].update({"times": times, ended: 1, "unused": outcome.unused})
    heads = (
        "fault", "times", "finished", "ended with an error, and finished when gone on with",
        "charged releases not used",
    )  # fmt: skip
    rows = [
        (kind, *(ends[name] for name in ("times", "finished", "went on", "unused")))
        for kind, ends in sorted(runs.items())
    ]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
