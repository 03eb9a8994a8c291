"""Audits of patient mode, which test the proof's claims on a site's own data.

``docs/how-to/audit.md`` describes the findings and the audits' limits. Nothing is sent or charged.
Findings contain no patient's values, but they are computed from data without noise, so only the
site may see them.
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
