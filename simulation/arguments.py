"""Check the studies' command-line arguments before the long computation starts."""

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
    """Report the package's own errors on one line and exit, as `parser` does for bad arguments."""
    try:
        yield
    except DPFactError as error:
        parser.error(str(error))
