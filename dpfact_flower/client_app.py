"""Flower's entry point at a site: the ClientApp, for both generations of strategies.

In a deployment, the site's node config has its `SiteSettings`. In a simulation, the node config has
Flower's `partition-id` and `num-partitions`, which select a site from the run config's data.

To make an app with mods, write ``app = ClientApp(mods=[...])``, then ``app.train()(train)`` and
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
from dpfact_flower.errors import MessageError, PrivacyRefusedError, RoundFailedError, SettingsError
from dpfact_flower.machine.logs import use_flower_handler
from dpfact_flower.settings import AppSettings, SiteSettings, refuse_unknown
from dpfact_flower.site.disclosure import ReplyDelay, log_privately, public_reason, seconds_left
from dpfact_flower.site.rules import site_rules
from dpfact_flower.wire import records

_SIMULATION_KEYS = {"partition-id", "num-partitions"}

use_flower_handler()
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one round, or reply with a code if the round failed."""
    return _answered(message, context, DPFactClient.fit)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer whether this site would refuse a round. No patient is read, and nothing is charged."""
    return _answered(message, context, DPFactClient.preflight)


def _answered(message: Message, context: Context, ask: Callable[..., Any]) -> Message:
    came_in = time.monotonic()
    seconds = seconds_left(message.metadata.created_at, message.metadata.ttl)
    try:
        client = client_for(context, came_in=came_in, time_left=seconds)
    except RoundRefusedError as error:  # the reply is already due
        return _error(message, str(error))
    return answered(message, client, lambda error: _refusal(context, error, came_in), ask)


def answered(
    message: Message,
    client: DPFactClient,
    refusal: Callable[[Exception], str],
    ask: Callable[..., Any] = DPFactClient.fit,
) -> Message:
    """Return a client's reply to the request for a round, without raising an error.

    If the message is not a request, `refusal` waits until the reply is due, and returns the text
    that may leave the site.
    """
    try:
        request = records.read_request(message)
    except Exception as error:  # nothing an error says may reach the server
        return _error(message, refusal(error))
    try:
        content = records.answer(*ask(client, request.arrays, request.config))
    except RoundRefusedError as error:  # the reply is due, too
        return _error(message, str(error))
    except Exception as error:  # for example too little memory, which depends on patients
        log_privately(client.site.name, error)
        return _error(message, public_reason(RoundFailedError()))
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Refuse, because a loss depends on the patients."""
    came_in = time.monotonic()
    _wait(context, came_in)
    return _error(message, public_reason(PrivacyRefusedError()))


def _error(message: Message, reason: str) -> Message:
    return Message(Error(records.CLIENT_APP_RAISED, reason), reply_to=message)


def _refusal(context: Context, error: Exception, came_in: float) -> str:
    """Log an error without a client, wait until the reply is due, and return the public text."""
    reason = log_privately(str(context.node_config.get("site", context.node_id)), error)
    _wait(context, came_in)
    return reason


def _wait(context: Context, came_in: float) -> None:
    """Wait until the hospital's `reply-after` has passed, if the setting is valid."""
    with suppress(SettingsError):
        if not context.node_config.keys() >= _SIMULATION_KEYS:
            ReplyDelay(SiteSettings.from_config(context.node_config).reply_after, came_in).wait()


def client_for(
    context: Context, *, came_in: float | None = None, time_left: float = math.inf
) -> DPFactClient:
    """Return the node's client for a newly arrived request. `ReplyDelay` explains the times.

    A `RoundRefusedError` has only a code, because Flower sends the errors of a `client_fn` to the
    server. The site's own log has the cause.
    """
    came_in = time.monotonic() if came_in is None else came_in
    try:
        return _client(context, came_in, time_left)
    except Exception as error:
        raise RoundRefusedError(_refusal(context, error, came_in)) from None


def _client(context: Context, came_in: float, time_left: float) -> DPFactClient:
    keys = context.node_config.keys() - _SIMULATION_KEYS
    if context.node_config.keys() >= _SIMULATION_KEYS:
        if keys:  # two stray keys must not override a hospital's settings
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
    settings = SiteSettings(
        data_path=str(files[partition]),
        state_dir=str(app_settings.sites_folder),
        allow_privacy="none,paper,patient",
        allow_rules=",".join(site_rules.names()),
    )
    return DPFactClient(open_site(settings.data_path), settings, simulation=True)
