"""`DPFactClient`, a Flower NumPyClient: the door to a `Site`. It unpacks, calls and packs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.client import NumPyClient
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteSource
from dpfact_flower.errors import DPFactError, MessageError, PrivacyRefusedError
from dpfact_flower.privacy.patient import step_of
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.answer import Site
from dpfact_flower.site.disclosure import log_privately, public_reason
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

NUM_EXAMPLES = 1
"""Sent with every reply in place of the number of patients, which concerns nobody else."""


class RoundRefusedError(DPFactError):
    """What leaves a site about a round that failed: a code. Made by `DPFactClient` alone."""

    code = "refused"


class DPFactClient(NumPyClient):
    """A hospital in a DPFact run.

    Parameters
    ----------
    source : SiteSource
        The site's `SiteData`, or its file by `dpfact_flower.data.site_data.open_site`.
    settings : SiteSettings
        `state_dir` and `allow_privacy` must be given.
    simulation : bool
        As for `dpfact_flower.site.answer.Site`.

    Raises
    ------
    SettingsError
        If a setting that a site must choose for itself is missing.

    Attributes
    ----------
    site : Site
        What answers.
    """

    def __init__(
        self, source: SiteSource, settings: SiteSettings, *, simulation: bool = False
    ) -> None:
        self.site = Site(source, settings, simulation=simulation)

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Answer one round: global feature factors in, released feature factors out.

        Raises
        ------
        RoundRefusedError
            For any failure; its text holds a code and nothing else.
        """
        try:
            release = self.site.answer(RoundRequest.from_wire(parameters, config))
        except Exception as error:  # nothing an error says may reach the server
            raise RoundRefusedError(log_privately(self.site.name, error)) from None
        arrays, reply = SiteReply(self.site.name, release.arrays, step_of(release)).to_wire()
        return list(arrays), NUM_EXAMPLES, dict(reply)

    def get_parameters(self, config: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Refuse: a site has no model for others to start from; the server's public seed has."""
        raise RoundRefusedError(public_reason(MessageError()))

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Refuse: a loss is a function of the patients; a site keeps it (`history.jsonl`)."""
        raise RoundRefusedError(public_reason(PrivacyRefusedError()))
