"""Convert requests and replies to and from Flower's records.

All messages use the layout of Flower's compatibility layer (`fitins`, `fitres`), because a
`NumPyClient` in a ``ClientApp(client_fn=...)`` needs this layout. The records' names are copied
here, because the Flower module that defines them has moved between versions.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError
from dpfact_flower.machine.parsed import read_npy
from dpfact_flower.settings import Scalar
from dpfact_flower.wire.protocol import SPEAKERS

CLIENT_APP_RAISED = 2
"""Flower's `ErrorCode.CLIENT_APP_RAISED_EXCEPTION`."""
_ASK = "fitins.parameters", "fitins.config"
_ANSWER = "fitres.parameters", "fitres.metrics"


class Payload(NamedTuple):
    """The arrays and the config of one message."""

    arrays: list[NDArray[Any]]
    config: Mapping[str, Any]


def ask(arrays: Sequence[NDArray[Any]], config: Mapping[str, Scalar]) -> RecordDict:
    """Return the content of a request."""
    return _content(_ASK, arrays, config)


def answer(
    arrays: Sequence[NDArray[Any]], examples: int, config: Mapping[str, Scalar]
) -> RecordDict:
    """Return the content of a reply."""
    content = _content(_ANSWER, arrays, config)
    content["fitres.num_examples"] = MetricRecord({"num_examples": examples})
    content["fitres.status"] = ConfigRecord({"code": 0, "message": "Success"})
    return content


def error_reply(message: Message, reason: str) -> Message:
    """Return a reply that contains only the reason for an error."""
    return Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)


def read_request(message: Message) -> Payload:
    """Read a request."""
    try:
        return _read(message, *_ASK)
    except MessageError as error:
        raise MessageError(f"{error}; {SPEAKERS}") from None


def read_reply(message: Message) -> Payload:
    """Read a reply."""
    return _read(message, *_ANSWER)


def _content(
    names: tuple[str, str], arrays: Sequence[NDArray[Any]], config: Mapping[str, Scalar]
) -> RecordDict:
    arrays_name, config_name = names
    return RecordDict(
        {arrays_name: ArrayRecord(list(arrays)), config_name: ConfigRecord(dict(config))}
    )


def _read(message: Message, arrays_name: str, config_name: str) -> Payload:
    arrays, config = (message.content.get(name) for name in (arrays_name, config_name))
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise MessageError(f"message: need the records {arrays_name!r} and {config_name!r}")
    try:
        if any(array.stype != "numpy.ndarray" for array in arrays.values()):  # the format .npy
            raise TypeError("stype")  # as in Flower
        return Payload([read_npy(BytesIO(array.data)) for array in arrays.values()], config)
    except Exception as error:  # NumPy, zlib and Flower raise different errors
        raise MessageError(f"message: arrays cannot be read ({type(error).__name__})") from None


def serialised_bytes(*messages: Message) -> int:
    """Return the number of bytes that Flower sends for messages, including nested objects."""
    with no_object_id_recompute():
        stored = [part for message in messages for part in get_all_nested_objects(message).values()]
        return sum(len(part.deflate()) for part in stored)
