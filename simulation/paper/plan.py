"""What the two variants of the evaluation run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulation.paper import datasets
from simulation.paper.datasets import Dataset

LARGE = ("paper-icu", "paper-cms")
"""Data sets on which a fit takes minutes."""


@dataclass(frozen=True)
class Plan:
    """One variant: which data, how often, how far.

    Attributes
    ----------
    name : str
    seeds : int
        Initialisations of the convergence figure.
    rounds, iterations : int
        Federated rounds; iterations of CP-ALS.
    splits : int
        Repetitions of the 60/40 split of every AUC.
    ranks : tuple of int
        Of the prediction table.
    epsilons : tuple of float
        Of the figure of factor match scores.
    weights : tuple of float
        Relative l2,1 weights `off` of the figure of column norms.
    convergence, prediction, epsilon, phenotypes : tuple of str
        Data sets of each experiment; the first of `prediction` is that of the column norms.
    """

    name: str
    seeds: int
    rounds: int
    iterations: int
    splits: int
    ranks: tuple[int, ...]
    epsilons: tuple[float, ...]
    weights: tuple[float, ...]
    convergence: tuple[str, ...]
    prediction: tuple[str, ...]
    epsilon: tuple[str, ...]
    phenotypes: tuple[str, ...]

    def sets(self, names: Sequence[str]) -> list[Dataset]:
        """The data sets that can be had here."""
        return [datasets.dataset(name) for name in names if datasets.available(name)]

    def missing(self) -> list[str]:
        """Data sets of this plan that cannot be had here."""
        wanted = (*self.convergence, *self.prediction, *self.epsilon, *self.phenotypes)
        return sorted({name for name in wanted if not datasets.available(name)})

    def on(self, cohort: str) -> Plan:
        """The same plan on one cohort's folder instead of all data sets."""
        one = (cohort,)
        return replace(self, convergence=one, prediction=one, epsilon=one, phenotypes=one)


FULL = Plan(
    "full", seeds=5, rounds=30, iterations=10, splits=10,
    ranks=(10, 20, 30, 40, 50, 60), epsilons=(0.5, 1.0, 2.0, 4.0, 8.0),
    weights=(0.0, 0.1, 0.2, 0.3, 0.5, 0.8),
    convergence=("paper-synthetic", "eicu", "synpuf", "paper-icu", "paper-cms"),
    prediction=("demo-icu", "eicu"),
    epsilon=("demo-icu", "eicu", "synpuf", "paper-icu"),
    phenotypes=("paper-icu", "mimic3"),
)  # fmt: skip
QUICK = Plan(
    "quick", seeds=2, rounds=16, iterations=8, splits=5, ranks=(12, 20), epsilons=(1.0, 4.0),
    weights=(0.0, 0.3, 0.6),
    convergence=("demo-icu", "eicu"), prediction=("demo-icu", "eicu"), epsilon=("demo-icu",),
    phenotypes=("demo-icu", "mimic3"),
)  # fmt: skip
