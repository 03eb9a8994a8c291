"""Registry of the server's update rules. For sites' rules, see `dpfact_flower.site.rules`."""

from collections.abc import Callable, Sequence

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.registry import Registry
from dpfact_flower.server.elastic import ElasticRule
from dpfact_flower.server.patient import PatientRule
from dpfact_flower.server.rule import ServerRule
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.solver.solvers import solvers

MakeRule = Callable[[Sequence[int], SolverSettings, PrivacySettings, RunSettings], ServerRule]
"""A callable, usually a class, that makes a run's rule from the feature shape and settings."""
server_rules: Registry[MakeRule] = Registry(
    "rule", "dpfact_flower.server.rules", elastic=ElasticRule, patient=PatientRule
)
"""Server rules, keyed by the name that a run's settings can use."""


def rule_for(
    feature_shape: Sequence[int], solver: SolverSettings, privacy: PrivacySettings, run: RunSettings
) -> ServerRule:
    """Create a run's rule: the rule named in `run`, or else the privacy mode's default rule."""
    solvers.find(solver.solver).check(privacy.sent(solver))
    if run.aggregation == "async" and privacy.privacy == "patient":
        raise SettingsError(
            "aggregation: 'async' is for modes none and paper; patient mode's rounds depend on "
            "each other: use 'sync', and set grace if slow sites delay the others"
        )
    if run.auto_rank and privacy.privacy != "patient":
        raise SettingsError(f"auto-rank: has no meaning with privacy {privacy.privacy!r}")
    rule = server_rules.find(run.rule or privacy.default_rule)(feature_shape, solver, privacy, run)
    if not isinstance(rule, ServerRule):
        raise SettingsError(f"rule: {run.rule!r} must be a subclass of ServerRule")
    if run.aggregation == "async" and type(rule).arrive is ServerRule.arrive:
        raise SettingsError(f"aggregation: rule {rule.name!r} has no method 'arrive'; use 'sync'")
    return rule
