"""The evaluation's variants: which data sets, systems and sizes each one runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulation.paper import datasets
from simulation.paper.datasets import Dataset

LARGE = ("paper-icu", "paper-cms")
"""Data sets on which a fit takes minutes."""


@dataclass(frozen=True)
class Plan:
    """One variant of the evaluation.

    `seeds` and `seeds_large` are the numbers of initialisations in the convergence figure, for
    small and for `LARGE` data sets. `rounds` and `iterations` are the numbers of federated rounds
    and of CP-ALS iterations. `splits` is the number of 60/40 splits for every AUC. `ranks` are in
    the prediction table, `epsilons` in the figure of factor match scores, and `weights` (values of
    `relative-l21`) in the figure of column norms.

    `convergence`, `prediction`, `epsilon` and `phenotypes` are the data sets of each experiment.
    The column norms use the first data set of `prediction`. `starts` is the number of
    initialisations over which every AUC and every factor match score is averaged.
    """

    name: str
    seeds: int
    seeds_large: int
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
    starts: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Return each data set once."""
        used = (*self.convergence, *self.prediction, *self.epsilon, *self.phenotypes)
        return tuple(dict.fromkeys(used))

    def seeds_of(self, name: str) -> int:
        """Return a data set's number of initialisations in the convergence figure."""
        return self.seeds_large if name in LARGE else self.seeds

    def sets(self, names: Sequence[str]) -> list[Dataset]:
        """Return the available data sets with these names."""
        return [datasets.dataset(name) for name in names if datasets.available(name)]

    def missing(self) -> list[str]:
        """Return the data sets of this plan that are not available."""
        return sorted(name for name in self.names if not datasets.available(name))

    def on(self, cohort: str) -> "Plan":
        """Return this plan restricted to one open data set or one cohort folder."""
        one = (cohort,)
        return replace(self, convergence=one, prediction=one, epsilon=one, phenotypes=one)


THOROUGH = Plan(
    "thorough", seeds=5, seeds_large=5, rounds=30, iterations=10, splits=10,
    ranks=(10, 20, 30, 40, 50, 60), epsilons=(0.5, 1.0, 2.0, 4.0, 8.0),
    weights=(0.0, 0.1, 0.2, 0.3, 0.5, 0.8),
    convergence=("paper-synthetic", "demo-icu", "eicu", "synpuf", *LARGE),
    prediction=("demo-icu", "eicu", "nhds", "paper-icu"),
    epsilon=("demo-icu", "eicu", "synpuf", "paper-icu"),
    phenotypes=("paper-icu", "mimic3"),
)  # fmt: skip
"""All experiments at the paper's sizes and repetitions, which take most of a day on one core."""
FULL = replace(
    THOROUGH, name="full", rounds=20, iterations=8, prediction=("demo-icu", "eicu"),
    epsilon=("demo-icu", "synpuf"),
)  # fmt: skip
"""All sizes, systems and figures, with the paper's 20 rounds and no AUC at its largest size."""
QUICK = replace(
    FULL, name="quick", seeds=2, rounds=12, iterations=6, splits=5, ranks=(12, 20),
    epsilons=(1.0, 4.0), weights=(0.0, 0.3, 0.6), convergence=("demo-icu", "eicu"),
    epsilon=("demo-icu",), phenotypes=("demo-icu", "mimic3"),
)  # fmt: skip
"""Only small data: every table and figure within minutes."""


def reductions(plan: Plan) -> list[str]:
    """Describe the parts of `THOROUGH` that a plan leaves out."""
    most, said = THOROUGH, []
    if set(plan.names) <= set(most.names):
        said += _left_out(plan)
    numbers = {
        "seeds": "starts", "rounds": "rounds", "iterations": "iterations of CP-ALS",
        "splits": "splits",
    }  # fmt: skip
    if set(plan.convergence) & set(LARGE):
        numbers["seeds_large"] = "starts at the paper's two large sizes"
    for field, word in numbers.items():
        if getattr(plan, field) != getattr(most, field):
            said.append(f"{getattr(plan, field)} {word}, not {getattr(most, field)}")
    for field, word in (("ranks", "ranks"), ("epsilons", "epsilons"), ("weights", "l2,1 weights")):
        if getattr(plan, field) != getattr(most, field):
            values = ", ".join(f"{value:g}" for value in getattr(plan, field))
            said.append(f"{word} {values} alone")
    return said


def _left_out(plan: Plan) -> list[str]:
    def titles(names: Sequence[str]) -> str:
        return " and ".join(f'"{datasets.dataset(name).title}"' for name in names)

    gone = [name for name in THOROUGH.names if name not in plan.names]
    said = [f"no data from {titles(gone)}"] if gone else []
    for field, word in (("convergence", "RMSE"), ("prediction", "AUC"), ("epsilon", "FMS")):
        kept = getattr(plan, field)
        less = [name for name in getattr(THOROUGH, field) if name not in (*kept, *gone)]
        said += [f"no {word} for {titles(less)}"] if less else []
    return said
