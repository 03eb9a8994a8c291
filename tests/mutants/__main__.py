"""Do the tests notice a mutant? ``python -m tests.mutants [--sample N] [--seed N] [ROOM ...]``.

cosmic-ray changes one token of the package (a number by one, an operator, a comparison, ``and``,
``not``, a decorator, a loop, what is caught), and the tests run: those that mirror the module
first, and where they pass all others of `trial.TESTS`. A test that fails has noticed, and so has
one that hangs or crashes. All of it is done in a copy of the checkout, which is gone afterwards.

A sample of a room's mutants is drawn; the same seed and the same code give the same sample. Those
that differ in annotations or log lines alone are not drawn, nor those that are no program.
Survivors that are explained (tests/mutants/explained.py) are not counted. The exit code is 1 if
less than 95 % of the others are noticed. Tests that are slow or start Flower's engines do not run.

It lies with the tests because it measures them. pytest runs what is in test_mutants.py alone, for
a sample takes about a quarter of a minute a mutant, after some minutes for the tests themselves.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.explained import reason
from tests.mutants.sample import Mutant, sample
from tests.mutants.trial import PACKAGE, Pristine, Verdict, copied, pristine, trial

ROOMS = ("privacy", "site", "server")
LEAST = 0.95
_CHECKOUT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Draw, try, and print a line a mutant, the survivors, and how many were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", default=ROOMS, metavar="ROOM", help="folder or module")
    parser.add_argument("--sample", type=int, default=60, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the copy goes then, too
    with copied(_CHECKOUT) as copy:
        rooms = [PACKAGE / room for room in options.rooms]
        mutants, places = sample(copy, rooms, options.sample, options.seed)
        print(f"{len(mutants)} mutants of {places} places, seed {options.seed}", flush=True)
        with pristine(copy) as whole:
            print(f"the tests pass without a mutant, in {whole.seconds:.0f} s", flush=True)
            tried = [_tried(mutant, whole) for mutant in mutants]
    return _told(tried)


def _tried(mutant: Mutant, whole: Pristine) -> tuple[Mutant, Verdict]:
    verdict = trial(mutant, whole)
    what = mutant.spec.operator_name.partition("/")[2]
    by = verdict.noticed or f"LIVES{' (explained)' if reason(mutant) else ''}"
    print(f"{verdict.seconds:6.0f} s  {mutant.path}:{mutant.line}  {what}  {by}", flush=True)
    return mutant, verdict


def _told(tried: Sequence[tuple[Mutant, Verdict]]) -> int:
    """Print survivors and how many were noticed; the exit code."""
    alive = [(mutant, verdict) for mutant, verdict in tried if verdict.noticed is None]
    for mutant, verdict in alive:
        print(f"\n{mutant.path}:{mutant.line} lives: {reason(mutant) or 'NOT EXPLAINED'}")
        print(verdict.diff)
    explained = sum(reason(mutant) is not None for mutant, _ in alive)
    noticed, counted = len(tried) - len(alive), len(tried) - explained
    share = noticed / counted if counted else 1.0
    print(f"\n{explained} more live and are explained" if explained else "")
    print(f"{noticed} of {counted} noticed ({100 * share:.1f} %)")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
