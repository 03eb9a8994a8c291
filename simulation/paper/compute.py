"""Compute fits one after another, or several at a time in separate processes.

The functions are not in `__main__`, because a worker process cannot import `__main__`.
"""

import os
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from threading import Thread

from threadpoolctl import threadpool_limits

from simulation.paper.jobs import Job, Result
from simulation.paper.systems import compute


def computed(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Result | Exception]]:
    """Compute jobs in this process or in several others, and yield each when it is finished.

    A failed job yields its error. The other jobs continue, so that their work is not wasted.
    """
    if processes == 1 or len(jobs) < 2:
        with threadpool_limits(1):
            for job in jobs:
                yield job, attempted(job)
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # for the worker processes, each of which uses one core
    with ProcessPoolExecutor(processes, get_context("spawn"), settle) as pool:
        waiting = {pool.submit(attempted, job): job for job in jobs}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def attempted(job: Job) -> Result | Exception:
    """Return a job's result, including its seconds, or the error that it raised."""
    began = time.perf_counter()
    try:
        result = compute(job)
    except Exception as error:
        traceback.print_exc()
        return error
    return replace(result, wall=time.perf_counter() - began)


def quiet() -> None:
    """Use one BLAS thread, and hide deprecation warnings."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    threadpool_limits(1)


def settle() -> None:
    """Call `quiet` in a worker process, and end the process when its parent ends."""
    quiet()
    Thread(target=end_with, args=[parent_process()], daemon=True).start()


def end_with(parent: BaseProcess) -> None:
    """End this process when `parent` has ended."""
    parent.join()
    os._exit(1)
