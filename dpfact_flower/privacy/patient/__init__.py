"""Plan, compute and perturb patient mode's releases.

`plan` derives the releases and their cost from public facts. `statistics` and `pairs` compute sums
of the patients' contributions, whose norms are bounded. `releases` adds noise to these sums. The
proof is in ``docs/explanation/proof.md``.
"""

from dpfact_flower.privacy.patient.releases import release, share, step_of

__all__ = ["release", "share", "step_of"]
