"""Centralised SGD: DPFact's solver on the pooled patients, with T = 1, gamma = 0 and mu = 0."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.solver import solve
from simulation.baselines import Snapshot, by_site, joined, pooled, site_tensors, start


def centralised(
    cohort: Cohort, solver: SolverSettings, *, rounds: int, seed: int
) -> Iterator[Snapshot]:
    """Fit the pooled patients with `solver.tau` passes per round, and yield each round's snapshot.

    The solver's gamma, relative_elastic, mu and relative_l21 are set to 0, because there is no
    other site. `seed` is the public seed of DPFact's initial factors and of the visiting order.
    """
    alone = replace(solver, gamma=0.0, relative_elastic=0.0, mu=0.0, relative_l21=0.0)
    tensor, tensors = scaled(pooled(cohort), alone), site_tensors(cohort, alone)
    model = joined(start(cohort, alone, seed))
    rng = np.random.default_rng([seed, 0])
    eta, seconds = alone.eta, 0.0
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        with threadpool_limits(1, user_api="blas"):
            result = solve(tensor, model, model[1:], alone, rng, eta=eta)
        seconds += time.perf_counter() - began
        model, eta = result.factors, result.eta
        yield Snapshot.of(number, list(by_site(model, cohort)), model[1:], tensors, seconds)
