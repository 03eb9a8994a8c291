"""Cache values computed from tensors, because a site uses the same tensor in every round."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import TypeVar

from dpfact_flower.tensor.sparse import SparseTensor

_MOST = 1 << 23
"""Largest total number of entries of all cached tensors. A larger tensor is cached alone."""

_Made = TypeVar("_Made")


def remembered(make: Callable[[SparseTensor], _Made]) -> Callable[[SparseTensor], _Made]:
    """Cache a function's values for the most recently used tensors."""
    values: OrderedDict[SparseTensor, _Made] = OrderedDict()
    lock = Lock()

    @wraps(make)
    def known(tensor: SparseTensor) -> _Made:
        with lock:
            if tensor in values:
                values.move_to_end(tensor)
                return values[tensor]
        value = make(tensor)
        with lock:
            values[tensor] = value
            while len(values) > 1 and sum(each.nnz for each in values) > _MOST:
                values.popitem(last=False)
        return value

    return known
