"""TRIP (Kim et al., KDD 2017): federated factorisation by consensus ADMM.

In each round, a site starts from the consensus ``F^`` of every feature mode::

    H_t <- H_t + omega (F_t - F^)                                   the multipliers
    A_t <- M_A G_A^-1                                               least squares
    F_t <- (M_F + omega F^ - H_t) (G_F + omega I)^-1                one feature mode after the other

The server then computes ``F^ <- mean over sites of F_t + H_t / omega``. M is the MTTKRP of the
site's tensor, and G is the Hadamard product of the other modes' Gram matrices. There are no
constraints and no privacy. A site sends F_t and H_t, which is twice as much as a DPFact site sends.

The server does not need H_t. The multipliers of all sites add up to zero after the server's step.
From the second round on, the server's mean is therefore the mean of F_t alone. With
`multipliers=False`, sites do not send their multipliers. The results are the same up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dpfact_flower.solver.mttkrp import mttkrp
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import gram, hadamard

_RTOL = 1e-6
"""Relative size below which eigenvalues of a Gram matrix are rounding errors of float32 sums."""


@dataclass(frozen=True, eq=False)
class TripState:
    """State of a site between rounds: its feature factors and their multipliers."""

    features: Factors
    multipliers: Factors

    @classmethod
    def initial(cls, consensus: Factors) -> "TripState":
        """Return the state before round 1: the consensus, with zero multipliers."""
        return cls(consensus, tuple(np.zeros_like(factor) for factor in consensus))


def site_round(
    tensor: SparseTensor, state: TripState, consensus: Factors, omega: float
) -> TripState:
    """Compute one round at a site, as described above.

    `consensus` holds the server's factors, one per feature mode. `omega` is the ADMM penalty, which
    is above 0 and the same at every site.
    """
    multipliers = tuple(
        H + np.float32(omega) * (F - mean)
        for H, F, mean in zip(state.multipliers, state.features, consensus, strict=True)
    )
    work = [least_squares_patients(tensor, state.features), *state.features]
    grams = [gram(factor) for factor in work]
    rank = work[0].shape[1]
    for n in range(1, tensor.ndim):
        pull = omega * consensus[n - 1].astype(np.float64) - multipliers[n - 1]
        q = hadamard(grams[:n] + grams[n + 1 :]) + omega * np.eye(rank)
        work[n] = _solved(mttkrp(tensor, work, n) + pull, q)
        grams[n] = gram(work[n])
    return TripState(tuple(work[1:]), multipliers)


def least_squares_patients(tensor: SparseTensor, features: Factors) -> NDArray[np.float32]:
    """Return ``A = M_A G_A^-1``, or the solution of least norm if there are several."""
    rank = features[0].shape[1]
    nothing = np.zeros((tensor.n_patients, rank), np.float32)
    product = mttkrp(tensor, [nothing, *features], 0)
    return _solved(product, hadamard([gram(factor) for factor in features]))


def _solved(target: NDArray[Any], system: NDArray[np.float64]) -> NDArray[np.float32]:
    """Multiply `target` by the pseudo-inverse of a symmetric system."""
    inverse = scipy.linalg.pinvh(system, rtol=_RTOL)
    return np.asarray(target @ inverse, np.float32)


def consensus_of(
    features: Sequence[Factors], multipliers: Sequence[Factors], omega: float
) -> Factors:
    """Return the server's mean over sites of ``F_t + H_t / omega``, in float64."""
    return tuple(
        np.mean(
            [
                own[mode].astype(np.float64) + dual[mode].astype(np.float64) / omega
                for own, dual in zip(features, multipliers, strict=True)
            ],
            axis=0,
        ).astype(np.float32)
        for mode in range(len(features[0]))
    )
