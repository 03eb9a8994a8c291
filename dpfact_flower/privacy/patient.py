"""Patient mode's one way out: exact integer noise on a bounded sum.

Unit: one patient. Neighbours: he is there in only one of the two data sets. Sensitivity and noise
are those that the `BoundedSum` carries; `release` takes neither as a number. The proof is in
``docs/explanation/proof.md``.
"""

from __future__ import annotations

import numpy as np

from dpfact_flower.privacy.events import PATIENT_CLAIM, ReleaseEvent
from dpfact_flower.privacy.mechanism import Noise, Release, replay
from dpfact_flower.privacy.statistics import BoundedSum


def release(bounded: BoundedSum, noise: Noise, *, name: str) -> Release:
    """Add discrete Gaussian noise to the sum, and say what that costs.

    Everything after the noise is post-processing: the integers become float32 in real units.

    Parameters
    ----------
    bounded : BoundedSum
    noise : Noise
    name : str
        What is released, for the record: of the plan, never of a patient.

    Returns
    -------
    Release
        One vector, in the order that the function which made the sum documents.
    """
    noisy = bounded.total + noise.integers(len(bounded.total))
    event = ReleaseEvent(
        name=name,
        sensitivity=bounded.sensitivity,
        sigma=bounded.sigma,
        count=len(bounded.total),
        unit="patient",
        neighbours="add-remove",
        claim=PATIENT_CLAIM,
        seeded=noise.seeded,
    )
    return replay([(noisy * np.float64(bounded.grid)).astype(np.float32)], [event])
