"""Register a site's federation rules. Servers use `dpfact_flower.server.rules` instead."""

from collections.abc import Callable

from dpfact_flower.machine.registry import Registry
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.round import RoundWork

site_rules: Registry[Callable[..., RoundWork]] = Registry(
    "rule", "dpfact_flower.site.rules", elastic=ElasticRound, patient=PatientRound
)
"""Rules installed at a site. A run may use only those rules that the site's `allow-rules` names.

A rule is a class or function that takes ``(vocabularies, request, *, site, simulation)``. The rule
returns the `RoundWork` or refuses the request. Only `RoundWork.run` receives patients' data.
"""
