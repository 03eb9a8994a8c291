"""Compress released values, which are integer multiples of a common step.

Zigzag coding makes the integers unsigned: 0, -1, 1, -2, ... become 0, 1, 2, 3, ... The bytes are
written in planes: first the lowest byte of every value, then the second-lowest, and so on. Most
values are small, so the higher bytes are mostly 0. Unpacking restores the float32 values exactly.

The packed bytes are the step (float64, little-endian), followed by a zlib stream of the byte
planes. There are as many byte planes as bytes in the largest integer.
"""

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError

Bytes = NDArray[np.uint8]
_HEAD = 8
_FARTHEST = 2**61
"""Limit on the integers, to prevent overflow."""
_LEVEL = 1
"""Compression level of zlib. Higher levels do not compress noise better."""


def pack(values: NDArray[np.float32], step: float) -> Bytes | NDArray[np.float32]:
    """Pack multiples of `step`. If packing is impossible or saves no bytes, return `values`."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.rint(values / np.float64(step))
    if not (len(steps) and np.abs(steps).max() < _FARTHEST):  # false for NaN
        return values
    whole = steps.astype(np.int64)
    if not np.array_equal(_values(whole, step).view(np.int32), values.view(np.int32)):
        return values
    signless = ((whole << 1) ^ (whole >> 63)).astype("<u8")
    planes = max(1, (int(signless.max()).bit_length() + 7) // 8)
    columns = signless.view(np.uint8).reshape(-1, 8)[:, :planes]
    body = zlib.compress(np.ascontiguousarray(columns.T).data, _LEVEL)
    packed = np.frombuffer(np.array([step], "<f8").tobytes() + body, np.uint8)
    return packed if packed.nbytes < values.nbytes else values


def unpack(packed: Bytes, count: int, where: str) -> NDArray[np.float32]:
    """Unpack bytes in the format of `pack`. The bytes may come from an attacker.

    Allocate memory for at most `count` values. `where` names the sender in error messages.
    """
    if len(packed) < _HEAD:
        raise MessageError(f"{where}: {len(packed)} bytes are too few for packed values")
    step = float(np.frombuffer(packed[:_HEAD].tobytes(), "<f8")[0])
    if not (math.isfinite(step) and step > 0):
        raise MessageError(f"{where}: the step of packed values must be finite and above 0")
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed[_HEAD:].tobytes(), 8 * count + 1)
    except zlib.error:
        raise MessageError(f"{where}: packed values do not decompress") from None
    planes = len(body) // count if count else 0
    whole_planes = 1 <= planes <= 8 and len(body) == planes * count
    if not (stream.eof and not stream.unused_data and whole_planes):
        raise MessageError(f"{where}: packed bytes are not those of {count} values")
    columns = np.zeros((count, 8), np.uint8)
    columns[:, :planes] = np.frombuffer(body, np.uint8).reshape(planes, count).T
    signless = columns.view("<u8").ravel()
    below = -(signless & np.uint64(1)).astype(np.int64)  # all bits are 1 for negative values
    return _values((signless >> np.uint64(1)).astype(np.int64) ^ below, step)


def _values(whole: NDArray[np.int64], step: float) -> NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        return (whole * np.float64(step)).astype(np.float32)
