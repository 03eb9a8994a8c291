"""Arrays that are the same to the last bit."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray


def assert_bits(found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> None:
    """Check that both have the same number of arrays, with equal types and bytes."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
