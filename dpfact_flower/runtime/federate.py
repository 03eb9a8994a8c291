"""A whole federated run in one process: for notebooks, tests and small data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpfact_flower.client_app import app as client_app
from dpfact_flower.errors import SettingsError
from dpfact_flower.runtime.config import RunConfig, prepare_data
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.runtime.serve import serve
from dpfact_flower.settings import Scalar


def federate(config: Mapping[str, Scalar]) -> Path:
    """Run DPFact with every site in this process, as many at a time as there are threads.

    The ClientApp, the strategy and the numbers are those of `flwr run`; only Ray and the network
    are missing.

    Parameters
    ----------
    config : mapping
        A run config with hyphenated keys, at least `data` and `out`; see ``dpfact settings``.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    DPFactError
        As for `dpfact_flower.runtime.serve.serve`.

    Examples
    --------
    >>> federate({"data": "synthetic:demo", "out": "runs/first", "rounds": 5})  # doctest: +SKIP
    PosixPath('runs/first')
    """
    checked = RunConfig.read(config)
    total = len(prepare_data(checked.app))
    if total == 0:
        raise SettingsError("data: a run in one process needs data")
    nodes = [{"partition-id": site, "num-partitions": total} for site in range(total)]
    return serve(InProcessGrid(client_app, nodes, checked.write()), checked)
