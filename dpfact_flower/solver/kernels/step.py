"""How one visit of a cell moves the rows that it touches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfact_flower.solver.losses import Loss, squared


@dataclass(frozen=True)
class Step:
    """How one visit moves the rows that it touches.

    Attributes
    ----------
    eta : float
        Step size.
    gamma : float
        Elastic weight. The pull to the anchors applies at entries, not at sampled zero cells.
    clip : float
        Bound on the 2-norm of a visit's data gradient for each row, weight included; 0 is none.
    floor : float
        Least value of a factor: 0, or minus infinity for no bound.
    patients : float
        How many times as far a patient's row goes; its bound is that of so much larger an eta.
    """

    eta: float
    gamma: float = 0.0
    clip: float = 0.0
    floor: float = 0.0
    patients: float = 1.0
    loss: Loss = squared

    def numbers(self) -> tuple[np.float32, ...]:
        """What a kernel takes: eta, gamma, clip, floor and the patients' factor."""
        given = (self.eta, self.gamma, self.clip, self.floor, self.patients)
        return tuple(map(np.float32, given))
