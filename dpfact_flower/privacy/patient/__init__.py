"""Plan the releases of patient mode, compute their statistics and add noise.

`plan` derives the releases and their cost without patients' data. `statistics` and `pairs` compute
sums over patients, in which each patient's contribution has a bounded norm. `releases` adds noise
to the sums. The proof is in ``docs/explanation/proof.md``.
"""

from dpfact_flower.privacy.patient.releases import release, share, step_of

__all__ = ["release", "share", "step_of"]
