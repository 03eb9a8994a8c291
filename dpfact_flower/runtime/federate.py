"""A whole federated run in one process, for notebooks, tests and small data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dpfact_flower.client_app import DPFactClient, answered
from dpfact_flower.client_app import app as client_app
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.errors import QuorumError, SettingsError
from dpfact_flower.machine.logs import ProgressCallback, no_progress
from dpfact_flower.runtime.config import RunConfig, prepare_data
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.runtime.serve import serve
from dpfact_flower.settings import Scalar, SiteSettings
from dpfact_flower.site.disclosure import disclosure_logger, log_privately


def federate(config: Mapping[str, Scalar], *, watch: ProgressCallback = no_progress) -> Path:
    """Run DPFact as `flwr run` does, but with every site in this process. Return the run folder."""
    checked = RunConfig.read(config)
    total = len(prepare_data(checked.app))
    if total == 0:
        raise SettingsError("data: a run in one process needs data")
    grid = InProcessGrid(client_app, _nodes(total), checked.write())
    with _reasons_shown():
        return serve(grid, checked, watch=watch)


def federate_cohort(
    cohort: Cohort,
    config: RunConfig,
    *,
    own: SiteSettings | None = None,
    measured: bool = True,
    report: bool = True,
    watch: ProgressCallback = no_progress,
) -> Path:
    """Run `federate` for sites in memory. See `serve` for `measured` and `report`.

    With `own`, every site has these settings and this budget, and its ledger is written durably.
    Without `own`, the sites are simulated and allow every run.
    """
    state_dir = str(config.app.sites_folder)
    simulated = SiteSettings(state_dir=state_dir, allow_privacy="none,paper,patient")
    app = _sites_app(cohort.sites, own or simulated, simulation=own is None)
    grid = InProcessGrid(app, _nodes(len(cohort.sites)))
    with _reasons_shown():
        return serve(
            grid, config, cohort=cohort, measured=measured, report=report and measured, watch=watch
        )


@contextmanager
def _reasons_shown() -> Iterator[None]:
    """Add the sites' own reasons to the error if sites refuse a run. All sites are local here."""
    refusals = BufferingHandler(10_000)
    refusals.setLevel(logging.ERROR)
    disclosure_logger.addHandler(refusals)
    try:
        yield
    except QuorumError as error:
        if not refusals.buffer:
            raise
        first, *others = dict.fromkeys(record.getMessage() for record in refusals.buffer)
        more = f" ({len(others)} more such lines are in the log)" if others else ""
        raise QuorumError(f"{str(error).partition('. ')[0]}: {first}{more}") from None
    finally:
        disclosure_logger.removeHandler(refusals)


def _nodes(total: int) -> list[dict[str, Scalar]]:
    return [{"partition-id": site, "num-partitions": total} for site in range(total)]


def _sites_app(sites: Sequence[SiteData], settings: SiteSettings, *, simulation: bool) -> ClientApp:
    """Return an app whose nodes act as the sites in memory, selected by `partition-id`."""
    beside = frozenset(site.name for site in sites)
    clients = [DPFactClient(site, settings, simulation=simulation, beside=beside) for site in sites]
    app = ClientApp()

    def reply(message: Message, context: Context, ask: Callable[..., Any]) -> Message:
        client = clients[int(context.node_config["partition-id"])]
        return answered(message, client, lambda error: log_privately(client.site.name, error), ask)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply(message, context, DPFactClient.fit)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return reply(message, context, DPFactClient.preflight)

    return app
