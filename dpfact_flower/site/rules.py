"""The site halves of rules by name; `dpfact_flower.server.rules` has the server halves."""

from __future__ import annotations

from typing import Protocol

from dpfact_flower.data.site_data import SiteSource
from dpfact_flower.machine.registry import Registry
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.round import RoundWork
from dpfact_flower.wire.protocol import RoundRequest


class SiteRule(Protocol):
    """Makes a rule's part of a round; usually a class with `RoundWork`'s methods."""

    def __call__(
        self, source: SiteSource, request: RoundRequest, *, site: str, simulation: bool
    ) -> RoundWork:
        """Refuse a request that does not fit the site; read no patient."""


site_rules: Registry[SiteRule] = Registry(
    "rule", "dpfact_flower.site.rules", elastic=ElasticRound, patient=PatientRound
)
"""Rules for which a site has code. Its setting `allow-rules` says which of them it accepts."""
