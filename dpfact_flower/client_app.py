"""Connect a site to Flower through the ClientApp `app`, or `DPFactClient` for the legacy API.

The module unpacks each request, passes the request to a `Site`, and packs the site's reply. In a
deployment, a site's node config contains the `SiteSettings`. In a simulation, Flower's
`partition-id` in the node config selects one of the sites in the run's data.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteSource, open_site, site_files
from dpfact_flower.errors import DPFactError, MessageError, RoundFailedError, SettingsError
from dpfact_flower.machine.logs import use_flower_handler
from dpfact_flower.privacy.patient import step_of
from dpfact_flower.settings import LARGEST, AppSettings, SiteSettings, refuse_unknown
from dpfact_flower.site.answer import Site
from dpfact_flower.site.disclosure import (
    ReplyDelay,
    log_privately,
    public_reason,
    seconds_left,
    sending_from,
)
from dpfact_flower.site.hospital import Hospital
from dpfact_flower.site.rules import site_rules
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import VERSION, RoundRequest, SiteReply, round_timeout
from dpfact_flower.wire.records import Payload

_logger = logging.getLogger(__name__)
NUM_EXAMPLES = 1
"""Number that each reply reports in place of the number of patients, which is private."""
Answer = tuple[list[NDArray[Any]], int, dict[str, Any]]


class RoundRefusedError(DPFactError):
    """An error whose text is only an error code, because Flower sends the text to the server."""


class DPFactClient(NumPyClient):
    """A hospital in a DPFact run, as a Flower NumPyClient.

    `source` is a `SiteData`, or the result of `data.site_data.open_site`. `settings` must contain
    `state_dir` and `allow_privacy`. `dpfact_flower.site.hospital.Hospital` explains `simulation`
    and `beside`. A reply's timer starts when the client receives the request. For the first reply,
    `delay` can be a timer that started earlier.
    """

    def __init__(
        self,
        source: SiteSource,
        settings: SiteSettings,
        *,
        simulation: bool = False,
        beside: Collection[str] = (),
        delay: ReplyDelay | None = None,
    ) -> None:
        self.site = Site(Hospital(source, settings, simulation, beside))
        self._reply_after = 0.0 if simulation else settings.reply_after
        self._first_delay = delay

    def fit(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Answer:
        """Answer one round, or raise a `RoundRefusedError` that contains only an error code."""
        return self._delayed(self._answered, lambda: Payload(parameters, config))

    def preflight(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Answer:
        """Check, without reading data or using budget, whether `fit` would accept a request."""
        return self._delayed(self._checked, lambda: Payload(parameters, config))

    def reply(self, message: Message, *, charged: bool) -> Answer:
        """Answer a message like `fit` or, if nothing may be charged, like `preflight`."""
        work = self._answered if charged else self._checked
        return self._delayed(work, partial(records.read_request, message))

    def _answered(self, request: Payload, delay: ReplyDelay) -> Answer:
        release = self.site.answer(RoundRequest.from_wire(*request), delay)
        try:
            arrays, reply = SiteReply(self.site.name, release.arrays, step_of(release)).to_wire()
        except Exception as error:  # for example a lack of memory, which depends on patients
            log_privately(self.site.name, error)
            raise RoundFailedError("the release was charged but could not be packed") from None
        return list(arrays), NUM_EXAMPLES, dict(reply)

    def _checked(self, request: Payload, delay: ReplyDelay) -> Answer:
        timeout = round_timeout(request.config)
        self.site.preflight(RoundRequest.from_wire(*request), delay)
        ReplyDelay(self._reply_after, time_left=sending_from(timeout)).check_in_time()
        arrays, reply = SiteReply(self.site.name, ()).to_wire()
        return list(arrays), NUM_EXAMPLES, {**reply, VERSION: version("dpfact-flower")}

    def _delayed(
        self, work: Callable[[Payload, ReplyDelay], Answer], read: Callable[[], Payload]
    ) -> Answer:
        """Read a request and return the answer of `work` to it, once the reply is due.

        If `read` or `work` fails, raise a `RoundRefusedError` at that time.
        """
        delay, self._first_delay = self._first_delay or ReplyDelay(self._reply_after), None
        answer, reason = None, ""
        try:
            answer = work(read(), delay)
        except Exception as error:  # the text of an error must not reach the server
            reason = log_privately(self.site.name, error)
        with suppress(Exception):  # an error here must not change the reply
            delay.wait()
        if self._reply_after:  # logged only at the site, because the time depends on patients
            _logger.info("ready after %.1f s; reply-after is %g", delay.ready, self._reply_after)
        if delay.late:  # the site keeps a charged answer, and can send it again
            reason = log_privately(self.site.name, RoundFailedError(
                "the reply was not ready when it was due: reply-after is too short. A charged "
                "release is kept, and sent if the server requests it again"
            ))  # fmt: skip
        if reason or answer is None:
            raise RoundRefusedError(reason) from None
        return answer


_SIMULATION_KEYS = {"partition-id", "num-partitions"}

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one round, or reply with an error code if the round fails."""
    return _reply(message, context, charged=True)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Report, without reading data or using budget, whether the site would answer a round."""
    return _reply(message, context, charged=False)


def _reply(message: Message, context: Context, *, charged: bool) -> Message:
    came_in = time.monotonic()
    use_flower_handler()  # not on import, because other code imports `DPFactClient` from here
    seconds = seconds_left(message.metadata.created_at, message.metadata.ttl)
    try:
        client = client_for(context, came_in=came_in, time_left=seconds)
    except RoundRefusedError as error:  # the delay is already over
        return records.error_reply(message, str(error))
    return client_reply(message, client, charged=charged)


def client_reply(message: Message, client: DPFactClient, *, charged: bool) -> Message:
    """Return a client's reply to a request, or an error reply if the client raises an error."""
    try:
        content = records.answer(*client.reply(message, charged=charged))
    except RoundRefusedError as error:  # here too, the delay is already over
        return records.error_reply(message, str(error))
    except Exception as error:  # for example a lack of memory, which depends on patients
        log_privately(client.site.name, error)
        return records.error_reply(message, public_reason(RoundFailedError()))
    return Message(content, reply_to=message)


def client_for(
    context: Context, *, came_in: float | None = None, time_left: float = math.inf
) -> DPFactClient:
    """Create the client that answers a request.

    `ReplyDelay` explains `came_in` and `time_left`. If creating the client fails, log the cause and
    raise a `RoundRefusedError`.
    """
    came_in = time.monotonic() if came_in is None else came_in
    try:
        return _client(context, came_in, time_left)
    except Exception as error:
        reason = log_privately(str(context.node_config.get("site", context.node_id)), error)
        with suppress(SettingsError):  # an invalid `reply-after` means no delay
            if not context.node_config.keys() >= _SIMULATION_KEYS:
                own = SiteSettings.from_config(context.node_config)
                ReplyDelay(own.reply_after, came_in).wait()
        raise RoundRefusedError(reason) from None


def _client(context: Context, came_in: float, time_left: float) -> DPFactClient:
    if context.node_config.keys() >= _SIMULATION_KEYS:
        keys = context.node_config.keys() - _SIMULATION_KEYS
        if keys:  # these keys must not override a hospital's settings
            raise SettingsError(
                f"node config: {', '.join(sorted(_SIMULATION_KEYS))} mark a simulated site, which "
                f"has no settings of its own; got {', '.join(sorted(keys))} too"
            )
        if Path(sys.argv[0]).name == "flwr-clientapp":  # a SuperNode started this process
            raise SettingsError(
                f"node config: {', '.join(sorted(_SIMULATION_KEYS))} mark a simulated site, for "
                "which the server chooses data and limits; a SuperNode needs data-path, state-dir "
                "and max-epsilon instead"
            )
        return _simulated_client(context)
    refuse_unknown(context.node_config, SiteSettings)
    settings = SiteSettings.from_config(context.node_config)
    if not settings.data_path:
        raise SettingsError("data-path: must be set in the site's node config")
    data = open_site(settings.data_path)
    delay = ReplyDelay(settings.reply_after, came_in, time_left)
    return DPFactClient(data, settings, delay=delay)


def _simulated_client(context: Context) -> DPFactClient:
    app_settings = AppSettings.from_config(context.run_config)
    files = site_files(app_settings.cohort_folder)
    partition = int(context.node_config["partition-id"])
    if partition >= len(files):
        raise MessageError(
            f"virtual client {partition} has no site: the data has {len(files)}; "
            f'use --federation-config "num-supernodes={len(files)}"'
        )
    settings = simulated_settings(app_settings.sites_folder)
    return DPFactClient(open_site(files[partition]), settings, simulation=True)


def simulated_settings(folder: Path) -> SiteSettings:
    """Return settings with which simulated sites accept every mode, rule and size of a run."""
    return SiteSettings(
        state_dir=str(folder),
        allow_privacy="none,paper,patient",
        allow_rules=",".join(site_rules.names()),
        max_rank=LARGEST,
        max_tau=LARGEST,
    )
