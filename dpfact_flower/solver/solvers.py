"""Local solvers by name."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dpfact_flower.machine.registry import Registry
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.exact import exact
from dpfact_flower.solver.objective import LocalResult
from dpfact_flower.solver.psgd import psgd
from dpfact_flower.tensor import Factors, SparseTensor


class Solver(Protocol):
    """One round's local work, on arguments that `dpfact_flower.solver.solve` has checked."""

    def __call__(
        self,
        tensor: SparseTensor,
        factors: Factors,
        anchors: Factors,
        settings: SolverSettings,
        rng: np.random.Generator,
        *,
        eta: float | None = None,
    ) -> LocalResult:
        """Improve the factors by `settings.tau` passes; what goes in is left alone."""


solvers: Registry[Solver] = Registry(
    "solver", "dpfact_flower.solver.solvers", exact=exact, psgd=psgd
)
"""Solvers that a run config may name; a site computes only with one that it has code for."""
