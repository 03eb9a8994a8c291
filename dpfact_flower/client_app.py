"""Flower's entry point at a site: the ClientApp.

One app serves both generations of strategies. In a deployment the site's node config says who it
is and what it allows (`SiteSettings`). In simulation, which Flower marks by giving a node
`partition-id` and `num-partitions`, the partition picks a site of the run config's data.

For an app with mods: ``app = ClientApp(mods=[...])``, then ``app.train()(train)`` and
``app.query()(query)``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from dpfact_flower.client import DPFactClient, RoundRefusedError
from dpfact_flower.data.site_data import open_site, site_files
from dpfact_flower.errors import (
    MessageError,
    PrivacyRefusedError,
    RoundFailedError,
    SettingsError,
)
from dpfact_flower.machine.logs import use_flower_handler
from dpfact_flower.settings import AppSettings, SiteSettings, refuse_unknown
from dpfact_flower.site.disclosure import log_privately, public_reason
from dpfact_flower.site.reply_timing import ReplyDelay, seconds_left
from dpfact_flower.site.rules import site_rules
from dpfact_flower.wire import records

_SIMULATION_KEYS = {"partition-id", "num-partitions"}

use_flower_handler()
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one round, or say with a code that it failed."""
    return _answered(message, context, DPFactClient.fit)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say whether this site would refuse a round; no patient is read, nothing is charged."""
    return _answered(message, context, DPFactClient.preflight)


def _answered(message: Message, context: Context, ask: Callable[..., Any]) -> Message:
    came_in = time.monotonic()
    seconds = seconds_left(message.metadata.created_at, message.metadata.ttl)
    try:
        client = client_for(context, came_in=came_in, time_left=seconds)
    except RoundRefusedError as error:  # its reply is due already
        return _error(message, str(error))
    return answered(message, client, lambda error: _refusal(context, error, came_in), ask)


def answered(
    message: Message,
    client: DPFactClient,
    refusal: Callable[[Exception], str],
    ask: Callable[..., Any] = DPFactClient.fit,
) -> Message:
    """A client's reply to the request for a round; it never raises.

    `ask` is the client's method that answers, `DPFactClient.fit` or `preflight`. `refusal` gives,
    when the reply is due, what may leave about a message that is no request.
    """
    try:
        request = records.read_request(message)
    except Exception as error:  # nothing an error says may reach the server
        return _error(message, refusal(error))
    try:
        content = records.answer(*ask(client, request.arrays, request.config))
    except RoundRefusedError as error:  # its reply is due, too
        return _error(message, str(error))
    except Exception as error:  # such as too little memory, which depends on patients
        log_privately(client.site.name, error)
        return _error(message, public_reason(RoundFailedError()))
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Refuse: a loss is a function of the patients."""
    came_in = time.monotonic()
    _wait(context, came_in)
    return _error(message, public_reason(PrivacyRefusedError()))


def _error(message: Message, reason: str) -> Message:
    return Message(Error(records.CLIENT_APP_RAISED, reason), reply_to=message)


def _refusal(context: Context, error: Exception, came_in: float) -> str:
    """What may be said of an error without a client, when it may be said."""
    reason = log_privately(str(context.node_config.get("site", context.node_id)), error)
    _wait(context, came_in)
    return reason


def _wait(context: Context, came_in: float) -> None:
    """Wait until the hospital's `reply-after` has passed; not at all if it is invalid."""
    with suppress(SettingsError):
        if not context.node_config.keys() >= _SIMULATION_KEYS:
            ReplyDelay(SiteSettings.from_config(context.node_config).reply_after, came_in).wait()


def client_for(
    context: Context, *, came_in: float | None = None, time_left: float = math.inf
) -> DPFactClient:
    """The client of this node, for a request that has just come in; parameters as `ReplyDelay`.

    Raises
    ------
    RoundRefusedError
        If the node config or the site's data cannot be used. Its text is a code, since Flower
        sends what a `client_fn` raises to the server; what is wrong stands in the site's own log.
    """
    came_in = time.monotonic() if came_in is None else came_in
    try:
        return _client(context, came_in, time_left)
    except Exception as error:
        raise RoundRefusedError(_refusal(context, error, came_in)) from None


def _client(context: Context, came_in: float, time_left: float) -> DPFactClient:
    keys = context.node_config.keys() - _SIMULATION_KEYS
    if context.node_config.keys() >= _SIMULATION_KEYS:
        if keys:  # a hospital's settings must not be ignored because of two stray keys
            raise SettingsError(
                f"node config: {', '.join(sorted(_SIMULATION_KEYS))} mark a simulated site, which "
                f"has no settings of its own; got {', '.join(sorted(keys))} too"
            )
        return _simulated_client(context)
    refuse_unknown(context.node_config, SiteSettings)
    settings = SiteSettings.from_config(context.node_config)
    if not settings.data_path:
        raise SettingsError("data-path: must be set in the site's node config")
    data = open_site(settings.data_path)
    return DPFactClient(data, settings, came_in=came_in, time_left=time_left)


def _simulated_client(context: Context) -> DPFactClient:
    app_settings = AppSettings.from_config(context.run_config)
    files = site_files(app_settings.cohort_folder)
    partition = int(context.node_config["partition-id"])
    if partition >= len(files):
        raise MessageError(
            f"virtual client {partition} has no site: the data has {len(files)}; "
            f'use --federation-config "num-supernodes={len(files)}"'
        )
    settings = SiteSettings.from_config(
        {
            "data-path": str(files[partition]),
            "state-dir": str(app_settings.sites_folder),
            "allow-privacy": "none,paper,patient",
            "allow-rules": ",".join(site_rules.names()),
        }
    )
    return DPFactClient(open_site(settings.data_path), settings, simulation=True)
