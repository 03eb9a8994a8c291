"""Counterexamples to DPFact's privacy proof (Theorem 4.1), computed with this package's own code.

The program runs the solver and the accountant on small fixed instances, and prints one table:

    python -m simulation.studies.bound

The theorem assumes that replacing one entry of a site's tensor moves a feature factor by at most
``2 tau L eta`` (Wu et al. 2017). All instances favour this bound. The gradients are clipped to L,
except in the rows about L. The two runs visit the entries in the same order, except in the rows
about zeros. The initial factors are public. The step size is constant, and below 2 / beta with the
paper's own beta. No pass is rolled back. Visiting orders come from public seeds, so a bound must
hold for every seed, including those chosen below. In the rows about the l2,1 step, the claimed
value is 0. Without that step, 0 would be correct. docs/explanation/proof.md explains the
consequences for patients.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.privacy import PAPER_CLAIM, ReleaseEvent, account, sigma_of
from dpfact_flower.privacy.conversions import epsilon_proposition_2_8, log_delta_gaussian
from dpfact_flower.privacy.paper import psgd_sensitivity
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import LocalResult, solve
from dpfact_flower.solver.kernels.order import visits
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import gram

PAPER = SolverSettings(
    rank=1, solver="psgd", scale="counts", zeros="none", gamma=0.0, relative_elastic=0.0,
    eta=0.01, clip=5.0, nonnegative=False,
)  # fmt: skip
"""Algorithm 1 as published: shuffled non-zeros, free signs. Each finding changes some settings."""

_SEEDS = 100

RHO, DELTA, ROUNDS = 1e-3, 1e-4, 20
"""The paper's budget for MIMIC-III: 20 rounds of two factors, stated as epsilon 1.2."""


@dataclass(frozen=True)
class Finding:
    """One case in which the claimed and the measured value of a quantity differ.

    `place` is the key of the finding. Rows with the same key belong together. `shows` describes the
    instance in one line.
    """

    place: str
    shows: str
    quantity: str
    claimed: float
    measured: float

    @property
    def ratio(self) -> float:
        """The measured value divided by the claimed value, or infinity if only the claim is 0."""
        if self.claimed == 0:
            return math.inf if self.measured else 0.0
        return self.measured / self.claimed

    def row(self) -> str:
        """Return a row of the table."""
        ratio = "-" if self.claimed == 0 else _number(self.ratio)
        numbers = (_number(self.claimed), _number(self.measured), ratio)
        return f"| {' | '.join((self.place, self.shows, self.quantity, *numbers))} |"


@dataclass(frozen=True)
class Instance:
    """Two tensors that differ in one entry, and the settings that both runs share."""

    cells: NDArray[np.int64]
    counts: NDArray[np.float64]
    changed: NDArray[np.float64]
    start: Factors
    settings: SolverSettings

    def tensors(self) -> tuple[SparseTensor, SparseTensor]:
        """Return the two neighbouring tensors."""
        shape = [len(factor) for factor in self.start]
        return (
            SparseTensor.from_coo(self.cells, self.counts, shape),
            SparseTensor.from_coo(self.cells, self.changed, shape),
        )

    def run(self, *seed: int, starts: Sequence[Factors] = ()) -> tuple[LocalResult, LocalResult]:
        """Run a round on each tensor, with equal anchors and the same visiting order."""
        before = starts or (self.start, self.start)
        first, second = (
            solve(tensor, start, self.start[1:], self.settings, np.random.default_rng(seed))
            for tensor, start in zip(self.tensors(), before, strict=True)
        )
        if first.rollbacks or second.rollbacks:
            raise RuntimeError("a pass was undone: the instance does not give the bound its best")
        return first, second

    @property
    def bound(self) -> float:
        """The theorem's bound, 2 tau L eta."""
        return psgd_sensitivity(self.settings.tau, self.settings.clip, self.settings.eta)


def _factor(rows: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


def distance(first: LocalResult, second: LocalResult) -> float:
    """Return the largest Frobenius distance between the two runs' factors of any feature mode."""
    pairs = zip(first.factors[1:], second.factors[1:], strict=True)
    return max(float(np.linalg.norm(a.astype(np.float64) - b)) for a, b in pairs)


def smoothness(factors: Factors, gamma: float) -> float:
    """Return the paper's beta, the largest ||(A^T A) * (C^T C) + gamma I||_F of any mode."""
    rank = factors[0].shape[1]
    largest = 0.0
    for mode in range(1, len(factors)):
        grams = [gram(factor) for other, factor in enumerate(factors) if other != mode]
        product = math.prod(grams[1:], start=grams[0]) + gamma * np.eye(rank)
        largest = max(largest, float(np.linalg.norm(product)))
    return largest


def joint_pass(patients: int, *, nonnegative: bool) -> Instance:
    """Return an instance in which one entry determines the direction of all other updates.

    Patient 0 has one entry, which decides the direction of the small row of diagnosis 0. All other
    patients have one entry, at procedure 1 and diagnosis 0. The row of procedure 1 starts at zero,
    so it takes the direction of the diagnosis's row, and each visit moves it further. One entry's
    gradient is bounded, but its effect on later entries is not.
    """
    cells = np.array([(0, 0, 0)] + [(i, 1, 0) for i in range(1, patients + 1)])
    if nonnegative:
        A = np.ones((patients + 1, 2), np.float32)
        A[0, 1] = 0
        start = (A, _factor([[1, 0], [0, 0]]), _factor([[0, 0.03]]))
        settings = replace(PAPER, rank=2, clip=20.0, nonnegative=True)
        low, high, others = 1.0, 20.0, 500.0
    else:
        start = (np.ones((patients + 1, 1), np.float32), _factor([[1], [0]]), _factor([[-0.03]]))
        settings, low, high, others = PAPER, 1.0, 20.0, 300.0
    counts = np.array([low] + [others] * patients)
    changed = np.array([high] + [others] * patients)
    return Instance(cells, counts, changed, start, settings)


def first_seed(instance: Instance) -> int:
    """Return the first public seed that visits patient 0 first."""
    tensor, _ = instance.tensors()
    for seed in range(1000):
        rows, _ = next(visits(tensor, 0, np.random.default_rng((seed,))))
        if rows[0, 0] == 0:
            return seed
    raise RuntimeError("no seed below 1000 visits patient 0 first")


def one_joint_pass(patients: int) -> list[Finding]:
    """(i) One pass from public initial factors, with one entry changed."""
    findings = []
    for nonnegative in (False, True):
        instance = joint_pass(patients, nonnegative=nonnegative)
        first, second = instance.run(first_seed(instance))
        findings.append(
            Finding(
                "joint pass",
                f"{patients} other patients, one entry each, "
                + ("non-negative" if nonnegative else "signs free"),
                "distance of B",
                instance.bound,
                distance(first, second),
            )
        )
    return findings


def cohort(*, gamma: float = 0.0, eta: float = 0.005) -> Instance:
    """Return forty patients with two or three entries. One count is raised by five."""
    rng = np.random.default_rng(3)
    start = tuple(rng.random((rows, 2), dtype=np.float32) for rows in (40, 3, 3))
    drawn = {(i, *map(int, rng.integers(3, size=2))) for i in range(40) for _ in range(3)}
    cells = np.array(sorted(drawn))
    counts = 1 + rng.poisson(2.0, len(cells)).astype(np.float64)
    changed = counts.copy()
    changed[0] += 5
    settings = replace(PAPER, rank=2, eta=eta, clip=1.0, gamma=gamma, nonnegative=True)
    return Instance(cells, counts, changed, start, settings)


def carried_state(gamma: float) -> list[float]:
    """Continue both runs from noiseless factors, and return distance / bound after each round.

    The bound must hold for each release, given all earlier ones. Both runs therefore have the same
    anchors, which are earlier releases.
    """
    instance = cohort(gamma=gamma)
    starts = (instance.start, instance.start)
    ratios = []
    for number in range(1, 31):
        first, second = instance.run(number, starts=starts)
        starts = (first.factors, second.factors)
        ratios.append(distance(first, second) / instance.bound)
    return ratios


def carried_over() -> list[Finding]:
    """(ii) The same bound, after several rounds."""
    findings = []
    for gamma in (0.05, 5.0):
        ratios, bound = carried_state(gamma), cohort().bound
        findings += [
            Finding(
                "carried state",
                f"40 patients, gamma {gamma:g}, round {number}",
                "distance of B or C",
                bound,
                ratios[number - 1] * bound,
            )
            for number in (1, 10, 30)
        ]
    return findings


def two_patients(mu: float) -> Instance:
    """Return two patients who share no code. The count of the second patient changes."""
    start = (_factor([[0.5], [0.5]]), _factor([[1], [1]]), _factor([[1], [1]]))
    settings = replace(PAPER, clip=100.0, mu=mu, tau=2, nonnegative=True)
    cells = np.array([(0, 0, 0), (1, 1, 1)])
    return Instance(cells, np.array([3.0, 1.0]), np.array([3.0, 90.0]), start, settings)


def coupled_patients() -> list[Finding]:
    """(iii) Through the l2,1 step, a change of one patient's count changes another's factors."""
    findings = []
    for mu in (0.0, 75.0):
        first, second = two_patients(mu).run(0)
        for mode, name in ((0, "patient 0's row of A"), (1, "B at patient 0's code")):
            moved = float(np.linalg.norm(first.factors[mode][0] - second.factors[mode][0]))
            findings.append(
                Finding("l2,1 step", f"patient 1's count 1 or 90, mu {mu:g}", name, 0.0, moved)
            )
    return findings


def with_zero_filled() -> tuple[Instance, SparseTensor]:
    """Return the cohort, and its tensor with one zero turned into a one."""
    instance = cohort(eta=0.02)
    tensor, _ = instance.tensors()
    taken = {tuple(cell) for cell in instance.cells.tolist()}
    zero = next((0, j, k) for j in range(3) for k in range(3) if (0, j, k) not in taken)
    filled = SparseTensor.from_coo(
        [zero, *instance.cells.tolist()], [1.0, *instance.counts], tensor.shape
    )
    return instance, filled


def filled_zero() -> list[Finding]:
    """(iv) If a zero becomes a one, a pass becomes longer and visits the entries in another order.

    A bound must hold for every visiting order, so the result is the worst of several seeds.
    """
    instance, filled = with_zero_filled()
    pair = (instance.tensors()[0], filled)

    def moved(seed: int) -> float:
        return distance(*(
            solve(t, instance.start, instance.start[1:], instance.settings,
                  np.random.default_rng(seed))
            for t in pair
        ))  # fmt: skip

    worst = max(range(_SEEDS), key=moved)
    orders = [next(visits(t, 0, np.random.default_rng(worst)))[0] for t in pair]
    same = int((orders[0] == orders[1][: len(orders[0])]).all(axis=1).sum())
    shows = f"40 patients, one zero becomes a one, worst of {_SEEDS} seeds"
    return [
        Finding("zero to one", shows, "visits in a pass", pair[0].nnz, filled.nnz),
        Finding("zero to one", shows, "visits that keep their place", pair[0].nnz, same),
        Finding("zero to one", shows, "distance of B or C", instance.bound, moved(worst)),
    ]


def unclipped(count: float) -> tuple[float, float]:
    """Change a count from 3 to `count`. Return the bound with L from the data, and the distance."""
    settings = replace(PAPER, clip=0.0)
    start = (np.ones((1, 1), np.float32),) * 3
    instance = Instance(np.zeros((1, 3), int), np.array([3.0]), np.array([count]), start, settings)
    largest = abs(1.0 - 3.0)  # |<a, b * c> - x| ||a * c|| of the only entry
    return 2 * settings.tau * largest * settings.eta, distance(*instance.run(0))


def no_lipschitz() -> list[Finding]:
    """(v) Without clipping, gradients have no bound L, and the distance grows with the count."""
    findings = []
    for count in (30.0, 300.0):
        claimed, measured = unclipped(count)
        findings.append(
            Finding(
                "no finite L",
                f"one entry, 3 or {count:g}, no clip; L as seen with 3",
                "distance of B",
                claimed,
                measured,
            )
        )
    return findings


def plan_events(entries: int) -> list[ReleaseEvent]:
    """Return the paper's releases, with the sensitivity for a patient with this many entries."""
    sensitivity = psgd_sensitivity(2, 5.0, 0.01)
    return [
        ReleaseEvent(
            name=f"round {number}, mode {mode}",
            sensitivity=entries * sensitivity,
            sigma=sigma_of(RHO, sensitivity),
            count=1,
            unit="entry",
            neighbours="replace",
            claim=PAPER_CLAIM,
        )
        for number in range(1, ROUNDS + 1)
        for mode in (1, 2)
    ]


def patient_unit() -> list[Finding]:
    """(vi) The privacy loss for a patient's m entries is up to m^2 times the loss for one entry."""
    claimed = RHO * ROUNDS * 2  # two factors
    sites = synthetic(preset("demo")).sites
    entries = np.concatenate(
        [np.bincount(s.tensor.indices[:, 0], minlength=s.tensor.n_patients) for s in sites]
    )
    findings = []
    for who, m in (("median", int(np.median(entries))), ("largest", int(entries.max()))):
        found = account(plan_events(m), DELTA).rho
        epsilons = [epsilon_proposition_2_8(rho, DELTA) for rho in (claimed, found)]
        shows = f"{who} patient of the synthetic demo, m = {m}"
        findings += [
            Finding("unit", shows, "rho, up to", claimed, found),
            Finding("unit", shows, "epsilon, up to", *epsilons),
        ]
    return findings


def parallel_sites() -> list[Finding]:
    """(vii) The sites' average privacy loss, compared with the loss at the site that spent most.

    Site 1 releases Gaussian values at rho = 1, and nine other sites at rho = 0.001. If data sets
    differ only at site 1, only its values tell them apart. How well they do so is known exactly.
    """
    rhos = [1.0] + [0.001] * 9
    average, most = math.fsum(rhos) / len(rhos), max(rhos)
    epsilon = epsilon_proposition_2_8(average, DELTA)
    shows = "one site at rho 1, nine at 0.001"
    return [
        Finding("average of sites", shows, "rho", average, most),
        Finding(
            "average of sites", shows, f"delta at the claimed epsilon {epsilon:.3g}",
            DELTA, math.exp(log_delta_gaussian(math.sqrt(2 * most), epsilon)),
        ),
    ]  # fmt: skip


def standard_deviation() -> list[Finding]:
    """(viii) The paper's text calls the variance Delta^2 / (2 rho) a standard deviation."""
    findings = []
    for eta in (1e-2, 1e-3):
        sensitivity = psgd_sensitivity(2, 1.0, eta)
        text = sensitivity**2 / (2 * RHO)
        findings.append(
            Finding(
                "std or variance",
                f"tau 2, L 1, eta {eta:g}: std {text:.3g} for {sigma_of(RHO, sensitivity):.3g}",
                "rho of a release",
                RHO,
                0.5 * (sensitivity / text) ** 2,
            )
        )
    return findings


def findings(patients: int) -> list[Finding]:
    """Return all findings, in the order of docs/explanation/proof.md."""
    return [
        *one_joint_pass(patients),
        *carried_over(),
        *coupled_patients(),
        *filled_zero(),
        *no_lipschitz(),
        *patient_unit(),
        *parallel_sites(),
        *standard_deviation(),
    ]


def describe(instance: Instance) -> str:
    """Return a full description of the first row's instance. Only its visiting order is random."""
    tensor, _ = instance.tensors()
    A, B, C = (factor.tolist() for factor in instance.start)
    s = instance.settings
    beta = max(
        smoothness(factors, s.gamma)
        for factors in (instance.start, *(r.factors for r in instance.run(first_seed(instance))))
    )
    return "\n".join(
        [
            f"The first row's instance: {tensor!r}, seed {first_seed(instance)}",
            f"  cells   {instance.cells.tolist()}",
            f"  counts  {instance.counts.tolist()}",
            f"  or      {instance.changed.tolist()}",
            f"  start   A {A}, B {B}, C {C}",
            f"  tau {s.tau}, L {s.clip:g}, eta {s.eta:g} (2 / beta is {2 / beta:.3g}), "
            f"gamma {s.gamma:g}, mu {s.mu:g}",
        ]
    )


def _number(value: Any) -> str:
    number = float(value)
    return f"{number:,.0f}" if number.is_integer() or number >= 1e4 else f"{number:.4g}"


def main() -> None:
    """Compute all findings and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--patients", type=int, default=10, help="other patients in the joint pass; 1 to 100"
    )
    given = parser.parse_args()
    if not 1 <= given.patients <= 100:
        parser.error(f"--patients: must lie in [1, 100]; got {given.patients}")
    header = ("where", "instance", "quantity", "claimed", "measured", "ratio")
    lines = [
        describe(joint_pass(given.patients, nonnegative=False)),
        "",
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(finding.row() for finding in findings(given.patients)),
    ]
    print("\n".join(lines))  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
