"""Audits of patient mode, which test the proof's claims on a site's own data.

``docs/how-to/audit.md`` describes the findings and the audits' limits. Nothing is sent or charged.
Findings contain no patient's values, but they are computed from data without noise, so only the
site may see them.
"""

from dpfact_flower.audit.finding import Finding
from dpfact_flower.audit.run import audit

__all__ = ["Finding", "audit"]
