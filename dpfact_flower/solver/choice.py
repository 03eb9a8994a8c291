"""Which kernels compute: those in vector instructions, or the same in plain loops.

The two differ in the order of sums and so in rounding. The first are taken where they compile and
are right; ``DPFACT_KERNELS=plain`` or ``vector`` decides.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import Any

from dpfact_flower.errors import SettingsError

VARIABLE = "DPFACT_KERNELS"
"""Environment variable that chooses the kernels: auto, vector or plain."""

logger = logging.getLogger(__name__)


def kernels(subject: str, name: str | None = None) -> Any:
    """Module of kernels ``<subject>_vector`` or ``<subject>_plain``.

    Parameters
    ----------
    subject : {"sgd", "fibres", "patients"}
        There are no plain kernels of the last.
    name : {"auto", "vector", "plain"}, optional
        Default: what the environment asks for.

    Raises
    ------
    SettingsError
        If there are none of that name.
    """
    kind = "vector" if vectors(name) else "plain"
    return importlib.import_module(f"dpfact_flower.solver.{subject}_{kind}")


def vectors(name: str | None = None) -> bool:
    """Whether kernels in vector instructions are taken; arguments and errors as of `kernels`."""
    return _taken(os.environ.get(VARIABLE, "auto") if name is None else name)


@functools.cache
def _taken(name: str) -> bool:
    if name not in {"auto", "vector", "plain"}:
        raise SettingsError(f"{VARIABLE}: must be auto, vector or plain; got {name!r}")
    return name == "vector" or (name == "auto" and _vectors_work())


def _vectors_work() -> bool:
    """Whether numba compiles vector code here, and it computes what it should."""
    try:
        vector: Any = importlib.import_module("dpfact_flower.solver.vector")
        works = bool(vector.works())
    except Exception as error:  # another numba, LLVM or processor fails in ways of its own
        logger.warning("vector kernels do not compile (%s): taking plain ones", error)
        return False
    if not works:
        logger.warning("vector kernels compute wrongly on this machine: taking plain ones")
    return works
