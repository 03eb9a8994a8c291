"""Run independent parts of a computation in threads, with the same result as in one thread.

Neither the parts of a computation nor the order of the results depend on the number of threads.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property, partial
from itertools import chain, islice
from threading import Lock, local
from typing import TypeVar

from threadpoolctl import ThreadpoolController

_here = local()
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def thread_count() -> int:
    """Return ``OMP_NUM_THREADS`` if it is positive, or else the number of available processors.

    In a thread that `in_order` started, return 1, because all processors are in use.
    """
    if getattr(_here, "is_worker", False):
        return 1
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _OneBlasThread(AbstractContextManager[None]):
    """A context in which BLAS uses one thread.

    The last thread to leave the context restores BLAS's number of threads, which is global. Enter
    the context before starting threads, because OpenBLAS may ignore a limit set in a worker thread.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limit = Lock(), 0, ExitStack()

    @cached_property
    def _libraries(self) -> ThreadpoolController:
        """Controller of NumPy's and SciPy's BLAS, cached because finding the libraries is slow."""
        import scipy.linalg  # noqa: F401, PLC0415  # has its own BLAS, which kernels use

        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit.enter_context(self._libraries.limit(limits=1, user_api="blas"))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.close()


one_blas_thread = _OneBlasThread()
"""Context in which the last bits of results do not depend on the number of BLAS threads."""


def in_order(function: Callable[[_Part], _Result], parts: Iterable[_Part]) -> Iterator[_Result]:
    """Yield the results of ``map(function, parts)``, computed in `thread_count` threads."""
    threads, parts = thread_count(), iter(parts)
    first = list(islice(parts, 2))
    parts = chain(first, parts)
    if threads == 1 or len(first) < 2:  # a single part needs no other thread
        yield from map(function, parts)
        return
    start = partial(setattr, _here, "is_worker", True)
    with ThreadPoolExecutor(threads, initializer=start) as pool:
        waiting = deque(pool.submit(function, part) for part in islice(parts, 2 * threads))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, part) for part in islice(parts, 1))
            yield result
