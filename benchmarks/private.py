"""Time a site's releases in patient mode: the statistic and its exact noise."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.rows import Row, timed
from benchmarks.scale import Scale
from benchmarks.solver import start
from dpfact_flower.privacy import Noise
from dpfact_flower.privacy.patient import release
from dpfact_flower.privacy.patient.statistics import BoundedSum, cooccurrence, refinement
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.tensor import SparseTensor

_PATIENTS = 7000
_TARGET = 5.0
_SIGMA = 1.0


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Return rows for a site with 7,000 of the largest tensor's patients."""
    name, tensor = list(tensors.items())[-1]
    site = tensor.select_patients(range(min(_PATIENTS, tensor.n_patients)))
    noise = Noise.from_settings(PrivacySettings(), stream=[0], simulation=False)
    factors = start(site, SolverSettings(rank=scale.rank))[1]

    def refined() -> BoundedSum:
        no_ridge = np.zeros(scale.rank)
        return refinement(site, factors, 0, ridge=no_ridge, bound=0.1, sigma=_SIGMA)

    sums: dict[str, Callable[[], BoundedSum]] = {
        "start": lambda: cooccurrence(site, sigma=_SIGMA), "refinement": refined,
    }  # fmt: skip
    found = []
    for what, bounded in sums.items():
        total = bounded()
        values = f"{site.n_patients:,} patients, {len(total.total):,} values"
        label = f"release {name}-site, {what}"
        found += [
            Row.of(f"{label}: statistic", timed(bounded, *scale.timing), "s", note=values),
            Row.of(
                label, timed(lambda: release(bounded(), noise, name="bench"), *scale.timing),  # noqa: B023
                "s", target=_TARGET, note=f"{values}; statistic, exact noise, record",
            ),
        ]  # fmt: skip
    return found
