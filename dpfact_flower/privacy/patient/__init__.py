"""Plan the releases of patient mode, compute their statistics and add noise.

The module `plan` derives releases and costs without patients' data. The modules `statistics` and
`pairs` compute sums over patients, and bound each patient's contribution. The module `releases`
adds noise to the sums. The proof is in ``docs/explanation/proof.md``.
"""

from dpfact_flower.privacy.patient.releases import release, share, step_of

__all__ = ["release", "share", "step_of"]
