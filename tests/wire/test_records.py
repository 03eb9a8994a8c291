"""The layout of requests and replies in Flower's messages."""

import numpy as np
import pytest
from flwr.app import Array, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.wire import records


@pytest.fixture
def process():
    """A process that may make messages, with the node and run that Flower requires."""
    InProcessGrid(ClientApp(), [{}])


def test_bytes_of_a_message_count_every_object_below_it(process):
    asked = (records.ask([np.zeros((n, 1), np.float32)], {"a": 1}) for n in (10, 1010))
    small, large = (records.serialised_bytes(Message(each, 2, MessageType.TRAIN)) for each in asked)
    assert 4000 <= large - small <= 4016  # a thousand float32 values, and a longer shape


def test_an_array_that_is_not_as_its_record_says_is_read_by_its_own_header(process):
    content = records.ask([np.ones((2, 3), np.float32)], {})
    data = content["fitins.parameters"]["0"].data
    for dtype, shape, stype in (("int32", (2, 3), "numpy.ndarray"), ("float32", (3, 2), "other")):
        content["fitins.parameters"]["0"] = Array(dtype, shape, stype, data)
        message = Message(content, 2, MessageType.TRAIN)
        if stype == "other":
            with pytest.raises(records.MessageError, match=r"cannot be read \(TypeError\)"):
                records.read_request(message)
        else:
            np.testing.assert_array_equal(records.read_request(message).arrays[0], np.ones((2, 3)))


def test_what_is_not_an_array_is_a_message_error(process):
    with pytest.raises(records.MessageError, match="need the records"):
        records.read_request(Message(RecordDict(), 2, MessageType.TRAIN))
