"""What is kept of tensors: the newest, up to so many entries."""

import gc
import weakref

import numpy as np

from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor import remembered as module
from dpfact_flower.tensor.remembered import remembered


class Made:
    """Anything that can be seen to go."""


def tensor(entries: int) -> SparseTensor:
    cells = np.column_stack([np.arange(entries), np.zeros(entries, int)])
    return SparseTensor.from_coo(cells, np.ones(entries), (entries, 1))


def test_the_oldest_go_where_entries_are_too_many_and_the_newest_stays(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 10)
    of = remembered(lambda _: Made())
    first, second, third = tensor(4), tensor(5), tensor(2)
    results = [weakref.ref(of(each)) for each in (first, second)]
    of(first)  # the second is the oldest now
    results.append(weakref.ref(of(third)))
    gc.collect()
    assert [bool(each()) for each in results] == [True, False, True]
    alone = weakref.ref(of(tensor(40)))
    gc.collect()
    assert [bool(each()) for each in (*results, alone)] == [False, False, False, True]
