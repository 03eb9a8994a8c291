"""`DPFactClient`, a Flower NumPyClient: the door to a `Site`. It unpacks, calls and packs."""

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
from dpfact_flower.errors import (
    DPFactError,
    MessageError,
    PrivacyRefusedError,
    RoundFailedError,
)  # fmt: skip
from dpfact_flower.privacy import Release
from dpfact_flower.privacy.patient import step_of
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.answer import Site
from dpfact_flower.site.disclosure import log_privately, public_reason
from dpfact_flower.site.reply_timing import ReplyDelay, overrun, sending_from
from dpfact_flower.wire.protocol import VERSION, RoundRequest, SiteReply, round_timeout

_logger = logging.getLogger(__name__)
NUM_EXAMPLES = 1
"""Sent with every reply in place of the number of patients, which is private."""
Answer = tuple[list[NDArray[Any]], int, dict[str, Any]]


class RoundRefusedError(DPFactError):
    """A round that failed, as the server may know it: the text is a code."""

    code = "refused"


class DPFactClient(NumPyClient):
    """A hospital in a DPFact run.

    Parameters
    ----------
    source : SiteSource
        The site's `SiteData`, or its file by `dpfact_flower.data.site_data.open_site`.
    settings : SiteSettings
        `state_dir` and `allow_privacy` must be given.
    simulation, beside
        As for `dpfact_flower.site.admission.Hospital`.
    came_in, time_left : float
        Of the first request, as for `dpfact_flower.site.reply_timing.ReplyDelay`. A deployed site
        has a client for each message. A simulation has no deadline.
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
        """Answer one round: global feature factors in, released feature factors out.

        Raises
        ------
        RoundRefusedError
            For any failure; its text holds a code and nothing else.
        """
        delay = self._delay()
        answer, reason = None, ""
        try:
            release = self.site.answer(RoundRequest.from_wire(parameters, config), delay)
            answer = self._packed(release)
        except Exception as error:  # nothing an error says may reach the server
            reason = self._refused(error)
        with suppress(Exception):  # the answer stands, or the refusal
            delay.wait()
        if self._reply_after:  # for the site alone: the time depends on its patients
            _logger.info("ready after %.1f s; reply-after is %g", delay.ready, self._reply_after)
        if delay.late:  # a charged answer is kept, and sent again at no cost
            reason = self._refused(overrun())
        if reason or answer is None:
            raise RoundRefusedError(reason) from None
        return answer

    def preflight(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Answer:
        """Refuse now what `fit` would refuse before it reads a patient; nothing is charged.

        Takes the request of `fit`, and under `ROUND_TIMEOUT` how long the server will wait.
        """
        delay, reason = self._delay(), ""
        try:
            timeout = round_timeout(config)
            self.site.preflight(RoundRequest.from_wire(parameters, config), delay)
            ReplyDelay(self._reply_after, time_left=sending_from(timeout)).check_in_time()
        except Exception as error:  # nothing an error says may reach the server
            reason = log_privately(self.site.name, error)  # not counted: it keeps nothing
        delay.wait()
        if reason:
            raise RoundRefusedError(reason) from None
        arrays, reply = SiteReply(self.site.name, ()).to_wire()
        return list(arrays), NUM_EXAMPLES, {**reply, VERSION: version("dpfact-flower")}

    def get_parameters(self, config: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Refuse: the start comes from the server's public seed, not from a site."""
        self._delay().wait()
        raise RoundRefusedError(public_reason(MessageError()))

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Refuse: a loss is a function of the patients; a site keeps it (`history.jsonl`)."""
        self._delay().wait()
        raise RoundRefusedError(public_reason(PrivacyRefusedError()))

    def _packed(self, release: Release) -> Answer:
        """A release as Flower takes it."""
        try:
            arrays, reply = SiteReply(self.site.name, release.arrays, step_of(release)).to_wire()
        except Exception as error:  # such as too little memory, which depends on the patients
            log_privately(self.site.name, error)
            raise RoundFailedError("the release was charged, and could not be packed") from None
        return list(arrays), NUM_EXAMPLES, dict(reply)

    def _refused(self, error: Exception) -> str:
        """The text that may leave of an error, which is logged and counted."""
        reason = log_privately(self.site.name, error)
        self.site.note_refusal(reason)
        return reason

    def _delay(self) -> ReplyDelay:
        """Of the reply to the request that has just come in."""
        came_in, self._came_in = self._came_in, None
        time_left, self._time_left = self._time_left, math.inf
        return ReplyDelay(self._reply_after, came_in, time_left)
