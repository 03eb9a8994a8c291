"""Command-line arguments of the studies, checked before hours of work begin."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpfact_flower.errors import DPFactError
from simulation.systems import NO_NOISE


def at_least(low: int) -> Callable[[str], int]:
    """Return a parser for whole numbers of at least `low`."""

    def number(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}; got {text}")
        return int(text)

    return number


def read_epsilon(text: str) -> float:
    """Parse an epsilon. Infinity becomes `NO_NOISE`."""
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0; got {text}")
    return min(float(text), NO_NOISE)


@contextmanager
def one_line_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Report the package's errors on one line and end the program, as `parser` does for its own."""
    try:
        yield
    except DPFactError as error:
        parser.error(str(error))
