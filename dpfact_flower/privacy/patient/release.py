"""Add exact integer noise to a bounded sum: all of the noise (`release`) or a part (`share`).

The `BoundedSum` supplies sensitivity and noise, which are never passed as numbers. The proof is in
``docs/explanation/proof.md``.
"""

from __future__ import annotations

import math

import numpy as np

from dpfact_flower.privacy.events import ReleaseEvent, patient_event
from dpfact_flower.privacy.noise import SIGMA_BITS
from dpfact_flower.privacy.noise_source import Noise
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.patient.statistics import BoundedSum
from dpfact_flower.privacy.release import Release, Share, replay

_FINE_BITS = 8
"""Released values are multiples of 1/256 of the noise's standard deviation. This rounding increases
the noise's variance by a millionth."""


def release(bounded: BoundedSum, noise: Noise, *, name: str) -> Release:
    """Add discrete Gaussian noise to the sum.

    Unit: one patient. Neighbours: add or remove. Sensitivity: that of `bounded`. All steps after
    the noise are post-processing: the integers are rounded to steps (`step_of`) and become float32
    in real units.
    """
    noisy = bounded.total + noise.integers(len(bounded.total))
    fine = SIGMA_BITS - _FINE_BITS
    steps = (noisy + (1 << (fine - 1))) >> fine  # nearest step, halves up
    event = patient_event(name, bounded.sensitivity, bounded.sigma, len(noisy), seeded=noise.seeded)
    return replay([(steps * _step(event)).astype(np.float32)], [event])


def step_of(release: Release) -> float:
    """Return the step in real units, or 0 if unknown. All values are multiples of the step."""
    events = release.events
    return float(_step(events[0])) if len(events) == 1 and events[0].unit == "patient" else 0.0


def _step(event: ReleaseEvent) -> np.float64:
    return np.float64(event.sigma) / (1 << _FINE_BITS)


def share(bounded: BoundedSum, noise: Noise, sharing: Sharing, slot: int, *, name: str) -> Share:
    """Add this site's part of the noise that the sites share.

    The sum is in the site's slot, and noise is in all slots. The integers are not rounded, because
    a sum of rounded values would not be a function of the sum. The integers must be masked before
    they leave the site. `bounded` must be made for this site's own noise.
    """
    slots = np.zeros((sharing.slots, len(bounded.total)), np.int64)
    slots[slot] = bounded.total
    noisy = slots.ravel() + noise.integers(slots.size)
    event = patient_event(
        name, bounded.sensitivity, bounded.sigma * math.sqrt(sharing.honest), len(noisy),
        seeded=noise.seeded, own_sigma=bounded.sigma, claim=sharing.claim,
    )  # fmt: skip
    return Share(noisy, (event,))
