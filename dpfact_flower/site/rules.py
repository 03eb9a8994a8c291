"""Registry of site rules. Each has a counterpart in `dpfact_flower.server.rules`."""

from typing import Protocol

from dpfact_flower.data.site_data import SiteSource
from dpfact_flower.machine.registry import Registry
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.round import RoundWork
from dpfact_flower.wire.protocol import RoundRequest


class SiteRule(Protocol):
    """A callable that returns a rule's `RoundWork` for a request. It is usually a class."""

    def __call__(
        self, source: SiteSource, request: RoundRequest, *, site: str, simulation: bool
    ) -> RoundWork:
        """Return the rule's part of the round, or refuse the request. Read no patient's data."""


site_rules: Registry[SiteRule] = Registry(
    "rule", "dpfact_flower.site.rules", elastic=ElasticRound, patient=PatientRound
)
"""Rules for which a site has code. The site accepts a rule only if `allow-rules` names it."""
