"""How one visit of a cell moves the rows that it touches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    """How one visit moves the rows it touches.

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
    sequential : bool
        Whether each mode sees a residual made with the new rows of the modes before it.
    """

    eta: float
    gamma: float = 0.0
    clip: float = 0.0
    floor: float = 0.0
    sequential: bool = False

    def numbers(self) -> tuple[np.float32, ...]:
        """What a kernel takes: eta, gamma, clip and floor."""
        given = (self.eta, self.gamma, self.clip, self.floor)
        return tuple(map(np.float32, given))
