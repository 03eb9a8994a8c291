"""Plan and compute the releases of patient mode, and add noise to them.

`plan` derives the releases and their cost without patients' data. `statistics` and `pairs` compute
sums over patients, in which each patient's contribution has a bounded norm. `releases` adds noise
to these sums. The proof is in ``docs/explanation/proof.md``.
"""

from dpfact_flower.privacy.patient.releases import release, share, step_of

__all__ = ["release", "share", "step_of"]
