"""The sizes of the measurements, and their synthetic tensors, pooled over sites."""

from dataclasses import dataclass

import numpy as np

from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest


@dataclass(frozen=True)
class Scale:
    """The sizes that a benchmark run uses.

    Attributes
    ----------
    name : str
    small, large : int
        Numbers of patients in tensor S (preset paper-synthetic) and tensor M (paper-mimic).
    claims, huge : int
        Numbers of patients in tensor C (as large as the public claims data) and in tensor L
        (which only the kernels use).
    rank : int
    repetitions : int
        Number of repetitions of each measurement in this process.
    shortest : float
        Minimum seconds of a repetition. Shorter repetitions measure the clock and the scheduler.
    starts : int
        Number of fresh processes per start-up measurement.
    rounds : int
        Number of rounds in a federated run.
    events : int
        Number of events in the tables to be read.
    """

    name: str
    small: int
    large: int
    claims: int
    huge: int
    rank: int
    repetitions: int
    shortest: float
    starts: int
    rounds: int
    events: int

    @property
    def timing(self) -> tuple[int, float]:
        """The arguments `repetitions` and `shortest` of `benchmarks.rows.timed`."""
        return self.repetitions, self.shortest

    @property
    def whole(self) -> bool:
        """Whether tensor M has the size to which targets in seconds apply."""
        return self.name == "full"

    def tensors(self) -> dict[str, SparseTensor]:
        """Return the tensors by name. A smaller tensor M is named M-thinned."""
        large = "M" if self.whole else "M-thinned"
        return {
            "S": pooled("paper-synthetic", self.small),
            large: pooled("paper-mimic", self.large),
        }


SCALES = {
    scale.name: scale
    for scale in (
        Scale("full", 5000, 40_662, 82_307, 1_000_000,
              rank=50, repetitions=9, shortest=0.1, starts=7, rounds=50,
              events=4_500_000),
        Scale("quick", 5000, 4_000, 8_000, 50_000,
              rank=50, repetitions=5, shortest=0.05, starts=3, rounds=6,
              events=450_000),
        Scale("smoke", 60, 60, 60, 200,
              rank=3, repetitions=2, shortest=0.001, starts=1, rounds=2,
              events=2_000),
    )
}  # fmt: skip


def claims(scale: Scale) -> dict[str, SparseTensor]:
    """Return tensor C by name. Tensor C has many codes, but few codes per window."""
    modes = "procedures:2532:1.2,diagnoses:10983:1.55"
    name = "C" if scale.whole else "C-thinned"
    return {name: pooled("paper-mimic", scale.claims, modes=modes)}


def pooled(name: str, patients: int, **changes: str) -> SparseTensor:
    """Return the given number of a preset's patients, from all sites, in one tensor."""
    sites = [site.tensor for site in synthetic(preset(name, patients=patients, **changes)).sites]
    first = np.cumsum([0, *(tensor.n_patients for tensor in sites)])
    indices = [np.copy(tensor.indices) for tensor in sites]
    for rows, start in zip(indices, first[:-1], strict=True):
        rows[:, 0] += start
    return SparseTensor.from_coo(
        np.concatenate(indices),
        np.concatenate([tensor.values for tensor in sites]),
        (int(first[-1]), *sites[0].feature_shape),
    )


def first_request(tensor: SparseTensor, settings: SolverSettings) -> RoundRequest:
    """Return the server's request in round 1, without privacy."""
    coordinator = Coordinator(
        tensor.feature_shape,
        solver=settings,
        privacy=PrivacySettings(privacy="none"),
        run=RunSettings(job="bench", start="random"),  # which asks for a solver in round 1
    )
    return coordinator.request(1)
