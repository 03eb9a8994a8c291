"""A ClientApp whose sites lie in this process's memory: no file of theirs is written or read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dpfact_flower.client import DPFactClient
from dpfact_flower.client_app import answered
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.disclosure import log_privately


def sites_app(
    sites: Sequence[SiteData], settings: SiteSettings, *, simulation: bool = True
) -> ClientApp:
    """The app of nodes that each play one of the sites, by their `partition-id`.

    Parameters
    ----------
    sites : sequence of SiteData
    settings : SiteSettings
        Of all of them; `site` is left empty, since each has a name of its own.
    simulation : bool
        As for `dpfact_flower.site.answer.Site`: False for a ledger that waits for the disk.
    """
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
