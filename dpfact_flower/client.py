"""`DPFactClient`, a Flower NumPyClient that unpacks requests for a `Site` and packs its replies."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from flwr.client import NumPyClient
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteSource
from dpfact_flower.errors import DPFactError, MessageError, PrivacyRefusedError, RoundFailedError
from dpfact_flower.privacy import Release
from dpfact_flower.privacy.patient import step_of
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.answer import Site
from dpfact_flower.site.disclosure import (
    ReplyDelay,
    log_privately,
    overrun,
    public_reason,
    sending_from,
)
from dpfact_flower.wire.protocol import VERSION, RoundRequest, SiteReply, round_timeout

_logger = logging.getLogger(__name__)
NUM_EXAMPLES = 1
"""Number that each reply reports instead of the number of patients, which is private."""
Answer = tuple[list[NDArray[Any]], int, dict[str, Any]]


class RoundRefusedError(DPFactError):
    """The error for a round that failed. The text is only a code, so the server may see it."""

    code = "refused"


class DPFactClient(NumPyClient):
    """A hospital in a DPFact run.

    `source` is the site's `SiteData`, or its file opened by `data.site_data.open_site`.
    `settings` needs `state_dir` and `allow_privacy`. `simulation` and `beside` have the meaning in
    `dpfact_flower.site.admission.Hospital`. `came_in` and `time_left` are times of the first
    request, as in `dpfact_flower.site.disclosure.ReplyDelay`.
    """

    def __init__(
        self,
        source: SiteSource,
        settings: SiteSettings,
        *,
        simulation: bool = False,
        beside: Collection[str] = (),
        came_in: float | None = None,
        time_left: float = math.inf,
    ) -> None:
        self.site = Site(source, settings, simulation=simulation, beside=beside)
        self._reply_after = 0.0 if simulation else settings.reply_after
        self._came_in = came_in
        self._time_left = math.inf if simulation else time_left

    def __repr__(self) -> str:
        return f"DPFactClient({self.site.name!r})"

    def fit(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Answer:
        """Answer one round. After any failure, raise a `RoundRefusedError` with only a code."""
        delay = self._delay()
        answer, reason = None, ""
        try:
            release = self.site.answer(RoundRequest.from_wire(parameters, config), delay)
            answer = self._packed(release)
        except Exception as error:  # nothing an error says may reach the server
            reason = self._refused(error)
        with suppress(Exception):  # an error here changes no reply
            delay.wait()
        if self._reply_after:  # for the site alone, as the time depends on patients
            _logger.info("ready after %.1f s; reply-after is %g", delay.ready, self._reply_after)
        if delay.late:  # a charged answer is kept and sent again at no cost
            reason = self._refused(overrun())
        if reason or answer is None:
            raise RoundRefusedError(reason) from None
        return answer

    def preflight(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Answer:
        """Refuse a round that `fit` would refuse before reading a patient. Nothing is charged."""
        delay, reason = self._delay(), ""
        try:
            timeout = round_timeout(config)
            self.site.preflight(RoundRequest.from_wire(parameters, config), delay)
            ReplyDelay(self._reply_after, time_left=sending_from(timeout)).check_in_time()
        except Exception as error:  # nothing an error says may reach the server
            reason = log_privately(self.site.name, error)  # a preflight is not counted
        delay.wait()
        if reason:
            raise RoundRefusedError(reason) from None
        arrays, reply = SiteReply(self.site.name, ()).to_wire()
        return list(arrays), NUM_EXAMPLES, {**reply, VERSION: version("dpfact-flower")}

    def get_parameters(self, config: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Refuse, because the start comes from the server's public seed, not from a site."""
        self._delay().wait()
        raise RoundRefusedError(public_reason(MessageError()))

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Refuse, because a loss depends on the patients. The site keeps it in `history.jsonl`."""
        self._delay().wait()
        raise RoundRefusedError(public_reason(PrivacyRefusedError()))

    def _packed(self, release: Release) -> Answer:
        try:
            arrays, reply = SiteReply(self.site.name, release.arrays, step_of(release)).to_wire()
        except Exception as error:  # for example too little memory, which depends on the patients
            log_privately(self.site.name, error)
            raise RoundFailedError("the release was charged, and could not be packed") from None
        return list(arrays), NUM_EXAMPLES, dict(reply)

    def _refused(self, error: Exception) -> str:
        """Log and count an error, and return the text that may leave the site."""
        reason = log_privately(self.site.name, error)
        self.site.note_refusal(reason)
        return reason

    def _delay(self) -> ReplyDelay:
        """Return the delay of the reply to the request that has just arrived."""
        came_in, self._came_in = self._came_in, None
        time_left, self._time_left = self._time_left, math.inf
        return ReplyDelay(self._reply_after, came_in, time_left)
