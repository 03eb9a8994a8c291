"""Flower's records: how a request or reply lies in a message, in either generation of the API.

New-style strategies (`flwr.serverapp.strategy`) put arrays and config under names of their own
choice; ours are below. Legacy strategies (`flwr.server.strategy`) reach a client through Flower's
compatibility layer, whose record names are part of its wire format and are spelled out here: the
module that defines them has moved between versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from dpfact_flower import npy
from dpfact_flower.errors import MessageError
from dpfact_flower.settings import Scalar

_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"
_LEGACY_ASK, _LEGACY_ANSWER = "fitins", "fitres"
_LEGACY_EMPTY = "_empty"
"""Name of the one array, without bytes, by which the compatibility layer says: no arrays."""
_NUMPY = "numpy.ndarray"
"""Flower's name of the `.npy` format."""


@dataclass(frozen=True, eq=False)
class Payload:
    """Arrays and config of a message, and which generation of the API it came in."""

    arrays: list[NDArray[Any]]
    config: Mapping[str, Any]
    legacy: bool = False


def ask(arrays: Sequence[NDArray[Any]], config: Mapping[str, Scalar]) -> RecordDict:
    """Content of a request, as the new-style strategy sends it."""
    return RecordDict({_ARRAYS: array_record(arrays), _CONFIG: ConfigRecord(dict(config))})


def answer(
    arrays: Sequence[NDArray[Any]], examples: int, config: Mapping[str, Scalar], *, legacy: bool
) -> RecordDict:
    """Content of a reply, in the generation the request came in."""
    if not legacy:
        return RecordDict(
            {
                _ARRAYS: array_record(arrays),
                _CONFIG: ConfigRecord(dict(config)),
                _METRICS: MetricRecord({"num-examples": examples}),
            }
        )
    return RecordDict(
        {
            f"{_LEGACY_ANSWER}.parameters": array_record(arrays),
            f"{_LEGACY_ANSWER}.metrics": ConfigRecord(dict(config)),
            f"{_LEGACY_ANSWER}.num_examples": MetricRecord({"num_examples": examples}),
            f"{_LEGACY_ANSWER}.status": ConfigRecord({"code": 0, "message": "Success"}),
        }
    )


def read(message: Message) -> Payload:
    """Arrays and config of a request or reply.

    Raises
    ------
    MessageError
        If a record is missing or an array does not deserialise.
    """
    content = message.content
    legacy = f"{_LEGACY_ASK}.parameters" in content
    names = (f"{_LEGACY_ASK}.parameters", f"{_LEGACY_ASK}.config") if legacy else (_ARRAYS, _CONFIG)
    arrays, config = (content.get(name) for name in names)
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise MessageError(f"message: need the records {names[0]!r} and {names[1]!r}")
    if legacy and [*arrays] == [_LEGACY_EMPTY]:
        return Payload([], config, legacy)
    try:
        return Payload([_received(array) for array in arrays.values()], config, legacy)
    except Exception as error:  # NumPy, zlib and Flower each raise their own on damaged bytes
        raise MessageError(f"message: arrays cannot be read ({type(error).__name__})") from None


def array_record(arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
    """What `ArrayRecord` makes of arrays, byte by byte."""
    record = ArrayRecord()
    for number, array in enumerate(arrays):
        record[str(number)] = Array(str(array.dtype), array.shape, _NUMPY, npy.written(array))
    return record


def _received(array: Array) -> NDArray[Any]:
    """What `Array.numpy` makes of it; an array of a common kind without parsing its header."""
    found = npy.read(array.data, array.dtype, array.shape) if array.stype == _NUMPY else None
    return array.numpy() if found is None else found


def serialised_bytes(*messages: Message) -> int:
    """Bytes of messages as Flower puts them on the wire: each, and every object below it.

    What messages have in common, as requests have their content, is measured once and counted for
    each of them.
    """
    # To serialise an object, Flower names its children by their hashes, and makes each of these
    # anew at every level. This is Flower's own way to have each made once (tests/test_grid.py).
    from flwr.supercore.inflatable import inflatable_object  # noqa: PLC0415

    known: dict[int, int] = {}

    def below(node: Any) -> int:
        return sum(len(child.deflate()) + below(child) for child in (node.children or {}).values())

    def content(message: Message) -> int:
        key = id(message.content) if message.has_content() else 0
        if key not in known:
            known[key] = below(message) if key else 0
        return known[key]

    with inflatable_object.no_object_id_recompute():
        return sum(len(message.deflate()) + content(message) for message in messages)
