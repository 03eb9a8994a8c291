"""Sizes of the measurements, and their synthetic tensors, pooled over sites."""

from dataclasses import dataclass

import numpy as np

from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest


@dataclass(frozen=True)
class Scale:
    """Size of a run.

    Attributes
    ----------
    name : str
    small, large : int
        Patients of tensor S (preset paper-synthetic) and of tensor M (paper-mimic).
    claims, huge : int
        Patients of tensor C (as large as the public claims) and of tensor L (for the kernels
        alone).
    rank : int
    repetitions : int
        Of measurements in this process.
    shortest : float
        Least seconds of a repetition; shorter ones measure clock and scheduler.
    starts : int
        Fresh processes per start-up measurement.
    rounds : int
        Of a federated run.
    events : int
        In tables that are read.
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
        """Repetitions and the shortest one, for `benchmarks.rows.timed`."""
        return self.repetitions, self.shortest

    @property
    def whole(self) -> bool:
        """Whether tensor M has the size that targets in seconds are for."""
        return self.name == "full"

    def tensors(self) -> dict[str, SparseTensor]:
        """Tensors by name; a smaller M is named M-thinned."""
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
    """Tensor C by its name: many codes, few of them in a window."""
    modes = "procedures:2532:1.2,diagnoses:10983:1.55"
    name = "C" if scale.whole else "C-thinned"
    return {name: pooled("paper-mimic", scale.claims, modes=modes)}


def pooled(name: str, patients: int, **changes: str) -> SparseTensor:
    """So many patients of a preset, of all sites, in one tensor."""
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
    """The server's question in round 1, without privacy."""
    coordinator = Coordinator(
        tensor.feature_shape,
        solver=settings,
        privacy=PrivacySettings(privacy="none"),
        run=RunSettings(job="bench", start="random"),  # which asks for a solver in round 1
    )
    return coordinator.request(1)
