"""Arguments of the studies, checked before hours of work, with errors of one line."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpfact_flower.errors import DPFactError
from simulation.systems import NO_NOISE


def at_least(low: int) -> Callable[[str], int]:
    """Type of an argument that is a whole number of at least `low`."""

    def number(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}; got {text}")
        return int(text)

    return number


def read_epsilon(text: str) -> float:
    """Type of an argument that is an epsilon; infinity is `NO_NOISE`."""
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0; got {text}")
    return min(float(text), NO_NOISE)


@contextmanager
def one_line_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the program with the text of one of our errors, as `parser` does with its own."""
    try:
        yield
    except DPFactError as error:
        parser.error(str(error))
