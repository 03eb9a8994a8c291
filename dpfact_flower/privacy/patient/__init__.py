"""Plan, compute and perturb patient mode's releases.

`plan` derives the releases and their cost from public facts. `statistics` (with `pairs`) computes
bounded sums. `releases` adds noise. The proof is in ``docs/explanation/proof.md``.
"""

from dpfact_flower.privacy.patient.releases import release, share, step_of

__all__ = ["release", "share", "step_of"]
