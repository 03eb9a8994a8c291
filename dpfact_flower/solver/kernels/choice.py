"""Which kernels compute: those in vector instructions, or the same in plain loops.

The two differ in the order of sums and so in rounding. The first are taken where they compile and
are right; ``DPFACT_KERNELS=plain`` or ``vector`` decides.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Protocol

from dpfact_flower.errors import SettingsError
from dpfact_flower.solver.kernels.step import Step
from dpfact_flower.tensor.arrays import Array

VARIABLE = "DPFACT_KERNELS"
"""Environment variable that chooses the kernels: auto, vector or plain."""

logger = logging.getLogger(__name__)


class SgdKernels(Protocol):
    """What a set of stochastic gradient kernels does."""

    def visit(self, stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
        """One stochastic gradient step per visit, in the order given; eqs. (ai), (bj).

        `stack` is updated in place, as of `dpfact_flower.tensor.stack.stack_factors`, and `anchors`
        that of the global feature factors: row q belongs to row I_0 + q of `stack`. `rows` are rows
        of `stack`, and `counts` the cells' counts; of a sampled zero cell its weight, negative.
        That of an entry is 1, and a count of 0 moves nothing.
        """

    def squares(
        self, stack: Array, indices: Array, values: Array, offsets: Array
    ) -> tuple[float, float]:
        """Squared error over a tensor's entries, and their inner product <X, M> with the model.

        The model's values are formed in float32, the sums in float64.
        """


class FibreKernels(Protocol):
    """What a set of kernels over fibres does; see `dpfact_flower.solver.kernels.vector.fibres`."""

    def add_fibres(
        self, indices: Array, values: Array, starts: Array, first: int, end: int, stack: Array,
        offsets: tuple[int, ...], mode: int, out: Array,
    ) -> None:  # fmt: skip
        """Add some fibres' part of a mode's MTTKRP."""

    def squares(
        self, indices: Array, values: Array, starts: Array, first: int, end: int, patients: Array,
        first_patient: int, features: Array, offsets: tuple[int, ...],
    ) -> tuple[float, float]:  # fmt: skip
        """Squared error over some fibres' entries, and what the model puts on them."""


# Imported when they are taken, not before: vector instructions may not compile here.


def sgd_kernels(name: str | None = None) -> SgdKernels:
    """Stochastic gradient kernels; arguments and errors as of `vectors`."""
    if vectors(name):
        from dpfact_flower.solver.kernels.vector import sgd as vector  # noqa: PLC0415

        return vector
    from dpfact_flower.solver.kernels.plain import sgd as plain  # noqa: PLC0415

    return plain


def fibre_kernels(name: str | None = None) -> FibreKernels:
    """Kernels over fibres; arguments and errors as of `vectors`."""
    if vectors(name):
        from dpfact_flower.solver.kernels.vector import fibres as vector  # noqa: PLC0415

        return vector
    from dpfact_flower.solver.kernels.plain import fibres as plain  # noqa: PLC0415

    return plain


def vectors(name: str | None = None) -> bool:
    """Whether kernels in vector instructions are taken.

    `name` is auto, vector or plain; by default what the environment asks for.
    """
    return _taken(os.environ.get(VARIABLE, "auto") if name is None else name)


@functools.cache
def _taken(name: str) -> bool:
    if name not in {"auto", "vector", "plain"}:
        raise SettingsError(f"{VARIABLE}: must be auto, vector or plain; got {name!r}")
    return name == "vector" or (name == "auto" and _vectors_work())


def _vectors_work() -> bool:
    """Whether numba compiles vector code here, and it computes what it should."""
    try:
        from dpfact_flower.solver.kernels.vector import instructions  # noqa: PLC0415

        works = instructions.works()
    except Exception as error:  # another numba, LLVM or processor fails in ways of its own
        logger.warning("vector kernels do not compile (%s): taking plain ones", error)
        return False
    if not works:
        logger.warning("vector kernels compute wrongly on this machine: taking plain ones")
    return works
