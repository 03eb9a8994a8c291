"""All that patient mode releases: what is planned, summed up, and given noise.

`plan` says from public facts what will be released and what that costs; `statistics` (with `pairs`)
makes bounded sums; `release` and `share` are the ways out. ``docs/explanation/proof.md`` has the
proof.
"""

from dpfact_flower.privacy.patient.release import release, share, step_of

__all__ = ["release", "share", "step_of"]
