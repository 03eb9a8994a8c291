"""Registry of site rules. Each has a counterpart in `dpfact_flower.server.rules`."""

from collections.abc import Callable

from dpfact_flower.machine.registry import Registry
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.round import RoundWork

site_rules: Registry[Callable[..., RoundWork]] = Registry(
    "rule", "dpfact_flower.site.rules", elastic=ElasticRound, patient=PatientRound
)
"""Rules for which a site has code. The site accepts a rule only if `allow-rules` names it.

A rule is a class or function that takes ``(source, request, *, site, simulation)``. It returns the
`RoundWork` or refuses the request, and reads no patient's data.
"""
