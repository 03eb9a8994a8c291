"""A whole federated run in one process: for notebooks, tests and small data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpfact_flower.client_app import app as client_app
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.watch import Watch, unwatched
from dpfact_flower.runtime.config import RunConfig, prepare_data
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.runtime.memory import sites_app
from dpfact_flower.runtime.serve import serve
from dpfact_flower.settings import Scalar, SiteSettings


def federate(config: Mapping[str, Scalar], *, watch: Watch = unwatched) -> Path:
    """Run DPFact with every site in this process, as many at a time as there are threads.

    The ClientApp, the strategy and the numbers are those of `flwr run`; only Ray and the network
    are missing.

    Parameters
    ----------
    config : mapping
        A run config with hyphenated keys, at least `data` and `out`; see ``dpfact settings``.
    watch : callable
        Told of progress.

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
    return serve(InProcessGrid(client_app, _nodes(total), checked.write()), checked, watch=watch)


def federate_cohort(
    cohort: Cohort,
    config: RunConfig,
    *,
    own: SiteSettings | None = None,
    measured: bool = True,
    report: bool = True,
    watch: Watch = unwatched,
) -> Path:
    """As `federate`, of sites in this process's memory.

    Parameters
    ----------
    cohort : Cohort
    config : RunConfig
        Of which `data` is empty. What the sites keep lies in its `state-dir`.
    own : SiteSettings, optional
        What every site allows, and its budget; the ledgers then wait for the disk. Without it the
        sites are simulated: they allow everything.
    measured, report, watch
        As for `dpfact_flower.runtime.serve.serve`.

    Raises
    ------
    DPFactError
        As for `serve`.
    """
    simulated = SiteSettings(
        state_dir=str(config.app.sites_folder), allow_privacy="none,paper,patient"
    )
    app = sites_app(cohort.sites, own or simulated, simulation=own is None)
    grid = InProcessGrid(app, _nodes(len(cohort.sites)))
    return serve(
        grid, config, cohort=cohort, measured=measured, report=report and measured, watch=watch
    )


def _nodes(total: int) -> list[dict[str, Scalar]]:
    return [{"partition-id": site, "num-partitions": total} for site in range(total)]
