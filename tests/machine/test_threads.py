import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np  # noqa: F401  # a BLAS
import pytest
import scipy.linalg  # noqa: F401
from threadpoolctl import ThreadpoolController

from dpfact_flower.machine.threads import in_order, one_blas_thread, thread_count
from tests.patience import PATIENCE


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_results_come_in_the_order_of_the_parts(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    done = [threading.Event() for _ in range(20)]

    def overtaken(part: int) -> int:
        """With several threads, each second part ends after the part that follows it."""
        if threads > 1 and part % 2 == 0:
            assert done[part + 1].wait(PATIENCE)
        done[part].set()
        return part * part

    assert list(in_order(overtaken, range(20))) == [n * n for n in range(20)]


def test_parts_run_at_the_same_time_and_few_results_wait(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    both, taken = threading.Barrier(2, timeout=PATIENCE), []

    def meet(part: int) -> int:
        both.wait()  # a single part would wait for ever
        return part

    def parts():
        for part in range(12):
            taken.append(part)
            yield part

    results = in_order(meet, parts())
    next(results)
    # Two parts in progress, two ahead of them, and one for the part whose result was taken.
    assert len(taken) <= 5
    assert len(list(results)) == 11


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_error_in_a_part_is_raised(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda part: 1 // part, [1, 0, 1]))


def test_a_part_has_no_threads_of_its_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert list(in_order(lambda _: thread_count(), range(3))) == [1, 1, 1]


def test_blas_stays_on_one_thread_until_the_first_is_out_again():
    libraries = ThreadpoolController()

    def threads() -> set[int]:
        return {found["num_threads"] for found in libraries.select(user_api="blas").info()}

    def inside() -> set[int]:
        with one_blas_thread:
            return threads()

    with libraries.limit(limits=2, user_api="blas"):
        assert inside() == {1}
        assert threads() == {2}
        with one_blas_thread, ThreadPoolExecutor(2) as pool:
            assert [pool.submit(inside).result() for _ in range(3)] == [{1}] * 3
            assert threads() == {1}
        assert threads() == {2}


ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("given", "count"), [("3", 3), ("1,2", 1), ("", ALL), ("0", ALL), ("many", ALL)]
)
def test_the_variable_that_others_obey_or_the_processors_say_how_many(monkeypatch, given, count):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert thread_count() == count
