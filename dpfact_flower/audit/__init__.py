"""Audits of patient mode: whether the code does on a site's own data what the proof says.

`audit` runs them all: how far one patient moves what is released, the noise, an adversary who knows
everything but whether some patients are there, and what others could do to the site's own folder.
What each finds, and what none of them would: ``docs/how-to/audit.md``.

Nothing is sent or charged. Findings hold no value of a patient, but they are computed from the
data without noise, so they are for the site alone.
"""

from dpfact_flower.audit.finding import Finding
from dpfact_flower.audit.likelihood import audit_likelihood
from dpfact_flower.audit.noise import audit_noise
from dpfact_flower.audit.run import audit, audit_state
from dpfact_flower.audit.sensitivity import audit_sensitivity
from dpfact_flower.audit.target import AuditTarget

__all__ = [
    "AuditTarget", "Finding", "audit", "audit_likelihood", "audit_noise", "audit_sensitivity",
    "audit_state",
]  # fmt: skip
