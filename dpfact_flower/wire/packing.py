"""Released values in the bits they need: whole steps of a grid, block by block.

A value under noise of standard deviation sigma says nothing below a small part of sigma, so it is
rounded to such steps before it is released (`dpfact_flower.privacy.patient`). What is left are
small integers, most of them noise alone. Each block of them is sent as its smallest value and the
distances from it, in as many bits as the largest distance takes. The float32 values come back bit
for bit.

Layout, little-endian: the step (float64), each block's smallest value (int64), each block's width
in bits (uint8), each block's distances (bits, lowest first; the last block is filled up with 0).
Blocks of one width follow each other, widths ascending.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError

Bytes = NDArray[np.uint8]
_BLOCK = 128
"""Values of a block: a multiple of 8, so that each begins with a byte of its own."""
_HEAD = 8
_LABEL = 9  # bytes that a block takes beside its distances
_FARTHEST = 2**61
"""Integers lie nearer to 0 than this; so distances take `_WIDEST` bits, and no sum overflows."""
_WIDEST = 62
_AT_ONCE = 1024  # blocks whose bits are spread out in memory at a time, one a byte


def pack(values: NDArray[np.float32], step: float) -> Bytes | None:
    """Values of a grid as bytes; None where they are not on it, or would not get smaller.

    Parameters
    ----------
    values : ndarray of float32, shape (count,)
        Each the float32 nearest to a whole multiple of `step`.
    step : float
        Above 0.

    Returns
    -------
    ndarray of uint8 or None
        `unpack` gives back the very same float32 values.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.rint(values / np.float64(step))
    if not (len(steps) and np.abs(steps).max() < _FARTHEST):  # NaN is not below anything
        return None
    whole = steps.astype(np.int64)
    if not np.array_equal(_values(whole, step).view(np.int32), values.view(np.int32)):
        return None
    packed = _packed(whole, step)
    return packed if packed.nbytes < values.nbytes else None


def unpack(packed: Bytes, count: int, where: str) -> NDArray[np.float32]:
    """Values that `pack` made bytes of.

    Parameters
    ----------
    packed : ndarray of uint8, one-dimensional
        From a stranger.
    count : int
        Number of values that were asked for; nothing larger is ever made.
    where : str
        Whose they are, for the error.

    Raises
    ------
    MessageError
        If they are not exactly that many values, or a number in them is out of range.
    """
    blocks = -(-count // _BLOCK)
    if len(packed) < _HEAD + _LABEL * blocks:
        raise MessageError(f"{where}: {len(packed)} bytes are too few for {count} packed values")
    step = float(np.frombuffer(packed[:_HEAD].tobytes(), "<f8")[0])
    if not (math.isfinite(step) and step > 0):
        raise MessageError(f"{where}: the step of packed values must be finite and above 0")
    ends = np.cumsum([_HEAD, 8 * blocks, blocks])
    lowest = np.frombuffer(packed[ends[0] : ends[1]].tobytes(), "<i8")
    widths = packed[ends[1] : ends[2]]
    if (widths > _WIDEST).any() or ((lowest <= -_FARTHEST) | (lowest >= _FARTHEST)).any():
        raise MessageError(
            f"{where}: packed values take at most {_WIDEST} bits and begin within 2**61 of 0"
        )
    needed = int(ends[2]) + _BLOCK // 8 * int(widths.sum(dtype=np.int64))
    if len(packed) != needed:
        raise MessageError(f"{where}: packed values need {needed} bytes, got {len(packed)}")
    whole, begin = np.empty((blocks, _BLOCK), np.int64), int(ends[2])
    for width, some in _by_width(widths):
        end = begin + _BLOCK // 8 * width * len(some)
        whole[some] = lowest[some, None] + _distances(packed[begin:end], len(some), width)
        begin = end
    return _values(whole.ravel()[:count], step)


def _packed(whole: NDArray[np.int64], step: float) -> Bytes:
    """Bytes of at least one integer."""
    table = np.pad(whole, (0, -len(whole) % _BLOCK), mode="edge").reshape(-1, _BLOCK)
    lowest = table.min(axis=1)
    distances = (table - lowest[:, None]).astype("<u8")
    distances.ravel()[len(whole) :] = 0
    widths = np.array([int(most).bit_length() for most in distances.max(axis=1)], np.uint8)
    head = np.array([step], "<f8").tobytes() + lowest.astype("<i8").tobytes() + widths.tobytes()
    parts = [_bits(distances[some], width) for width, some in _by_width(widths)]
    return np.concatenate([np.frombuffer(head, np.uint8), *parts])


def _values(whole: NDArray[np.int64], step: float) -> NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        return (whole * np.float64(step)).astype(np.float32)


def _by_width(widths: Bytes) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Widths that occur, ascending, each with some of its blocks at a time."""
    for width in np.unique(widths).tolist():
        blocks = np.flatnonzero(widths == width)
        for first in range(0, len(blocks), _AT_ONCE):
            yield width, blocks[first : first + _AT_ONCE]


def _bits(distances: NDArray[np.uint64], width: int) -> Bytes:
    """The lowest bits of each distance, one after the other."""
    spread = np.unpackbits(distances.view(np.uint8), axis=1, bitorder="little")
    needed = spread.reshape(-1, 64)[:, :width]
    return np.packbits(needed.reshape(-1), bitorder="little")


def _distances(packed: Bytes, blocks: int, width: int) -> NDArray[np.int64]:
    """What `_bits` made bytes of; shape (blocks, values of a block)."""
    spread = np.zeros((blocks * _BLOCK, 64), np.uint8)
    needed = np.unpackbits(packed, bitorder="little")
    spread[:, :width] = needed.reshape(len(spread), width)
    whole = np.packbits(spread, axis=1, bitorder="little").view("<u8")
    return whole.reshape(blocks, _BLOCK).astype(np.int64)
