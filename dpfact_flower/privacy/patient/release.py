"""Patient mode's two ways out: exact integer noise on a bounded sum, all of it or a site's share.

Unit: one patient. Neighbours: they are in only one of the two data sets. Sensitivity and noise
are those that the `BoundedSum` carries; `release` takes neither as a number. The proof is in
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
"""A released value is a whole multiple of 1/256 of its noise's standard deviation. Below, there is
nothing but noise: the rounding adds a millionth to its variance."""


def release(bounded: BoundedSum, noise: Noise, *, name: str) -> Release:
    """Add discrete Gaussian noise to the sum, and say what that costs.

    Everything after the noise is post-processing: the integers are rounded to steps that still
    mean something under the noise (`step_of`), and become float32 in real units.

    `name` says what is released: of the plan, never of a patient. The values come in the order that
    the function which made the sum documents.
    """
    noisy = bounded.total + noise.integers(len(bounded.total))
    fine = SIGMA_BITS - _FINE_BITS
    steps = (noisy + (1 << (fine - 1))) >> fine  # the nearest; halves go up
    event = patient_event(name, bounded.sensitivity, bounded.sigma, len(noisy), seeded=noise.seeded)
    return replay([(steps * _step(event)).astype(np.float32)], [event])


def step_of(release: Release) -> float:
    """What the values of a release are whole multiples of, in real units; 0 if nothing is known."""
    events = release.events
    return float(_step(events[0])) if len(events) == 1 and events[0].unit == "patient" else 0.0


def _step(event: ReleaseEvent) -> np.float64:
    return np.float64(event.sigma) / (1 << _FINE_BITS)


def share(bounded: BoundedSum, noise: Noise, sharing: Sharing, slot: int, *, name: str) -> Share:
    """Add this site's part of a noise that sites share, and say what that costs.

    The sum stands in its slot; noise is in all slots. The integers are not rounded: a sum of
    rounded values would be no function of the sum. They must be masked before they leave.
    `bounded` was made for this site's own noise.
    """
    slots = np.zeros((sharing.slots, len(bounded.total)), np.int64)
    slots[slot] = bounded.total
    noisy = slots.ravel() + noise.integers(slots.size)
    event = patient_event(
        name, bounded.sensitivity, bounded.sigma * math.sqrt(sharing.honest), len(noisy),
        seeded=noise.seeded, own_sigma=bounded.sigma, claim=sharing.claim,
    )  # fmt: skip
    return Share(noisy, (event,))
