"""All that patient mode releases: what is planned, summed up, and given noise.

`plan` says from public facts what will be released and what that costs; `statistics` (with `pairs`)
makes bounded sums; `release` is the one way out. ``docs/explanation/proof.md`` has the proof.
"""

from dpfact_flower.privacy.patient.release import release, step_of

__all__ = ["release", "step_of"]
