"""What is made of a tensor, kept for tensors that come again: a site's is the same in every round.

One process may play many sites, or large ones. So what is kept is bounded by the tensors' entries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import TypeVar

from dpfact_flower.tensor.sparse import SparseTensor

_MOST = 1 << 23
"""Entries of the tensors of which something is kept, unless the newest alone has more."""

_Made = TypeVar("_Made")


def remembered(make: Callable[[SparseTensor], _Made]) -> Callable[[SparseTensor], _Made]:
    """The function, which remembers what it made of the tensors that came last."""
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
