"""Compute fits one after another, or several at a time in separate processes.

The functions have their own module, because another process cannot import a program.
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
    """Compute jobs, in this process or in several others, as they finish.

    A failed job yields its error, and the others continue, so one failure does not waste an hour's
    work.
    """
    if processes == 1 or len(jobs) < 2:
        with threadpool_limits(1):
            for job in jobs:
                yield job, attempted(job)
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # for the worker processes, which have a core each
    with ProcessPoolExecutor(processes, get_context("spawn"), settle) as pool:
        waiting = {pool.submit(attempted, job): job for job in jobs}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def attempted(job: Job) -> Result | Exception:
    """Return a job's result with its seconds, or the error."""
    began = time.perf_counter()
    try:
        result = compute(job)
    except Exception as error:
        traceback.print_exc()
        return error
    return replace(result, wall=time.perf_counter() - began)


def quiet() -> None:
    """Use one BLAS thread and hide warnings that do not concern the reader."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    threadpool_limits(1)


def settle() -> None:
    """Make a worker process quiet, and end it when its parent ends."""
    quiet()
    Thread(target=end_with, args=[parent_process()], daemon=True).start()


def end_with(parent: BaseProcess) -> None:
    """End this process when `parent` has ended."""
    parent.join()
    os._exit(1)
