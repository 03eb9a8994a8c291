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
    found: OrderedDict[SparseTensor, _Made] = OrderedDict()
    lock = Lock()

    @wraps(make)
    def known(tensor: SparseTensor) -> _Made:
        with lock:
            if tensor in found:
                found.move_to_end(tensor)
                return found[tensor]
        made = make(tensor)
        with lock:
            found[tensor] = made
            while len(found) > 1 and sum(each.nnz for each in found) > _MOST:
                found.popitem(last=False)
        return made

    return known
