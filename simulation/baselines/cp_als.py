"""Centralised CP-ALS from pyttb, the Python port of the Tensor Toolbox that the paper used."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyttb as _pyttb
from threadpoolctl import threadpool_limits

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.tensor import Factors, SparseTensor
from simulation.baselines import Snapshot, by_site, joined, pooled, site_tensors, start

pyttb: Any = _pyttb  # exports its names only at run time


def cp_als(cohort: Cohort, solver: SolverSettings, *, rounds: int, seed: int) -> Iterator[Snapshot]:
    """Run alternating least squares on the pooled patients, with one iteration per round.

    pyttb does not return its iterates, so each iteration is a call that continues from the previous
    one. The result is exact, because an iteration depends only on the columns' directions, which
    pyttb keeps. Of the solver's settings, only `rank` and `scale` are used. `seed` is the public
    seed of DPFact's initial factors. In the snapshots, the patients' factor contains the columns'
    weights.
    """
    tensor, tensors = scaled(pooled(cohort), solver), site_tensors(cohort, solver)
    data = to_pyttb(tensor)
    model = pyttb.ktensor([f.astype(np.float64) for f in joined(start(cohort, solver, seed))])
    seconds = 0.0
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        with threadpool_limits(1, user_api="blas"):
            model, _, _ = pyttb.cp_als(
                data, solver.rank, init=model, maxiters=1, stoptol=0, printitn=0, fixsigns=False
            )
        seconds += time.perf_counter() - began
        factors = weighted(model)
        yield Snapshot.of(number, list(by_site(factors, cohort)), factors[1:], tensors, seconds)


def to_pyttb(tensor: SparseTensor) -> Any:
    """Convert a tensor to a pyttb tensor."""
    values = tensor.values.astype(np.float64)[:, None]
    return pyttb.sptensor(tensor.indices.astype(np.int64), values, tensor.shape)


def weighted(model: Any) -> Factors:
    """Return the factors of a pyttb model, with its weights in the patients' factor."""
    patients, *features = model.factor_matrices
    return (patients * model.weights, *features)
