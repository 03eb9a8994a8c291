"""Audits of patient mode, which test the proof's claims on a site's own data.

``docs/how-to/audit.md`` describes the findings and the limits of audits. An audit sends no data and
uses no privacy budget. Findings contain no patient's values. However, they are computed without
noise, so only the site may see them.
"""

from dpfact_flower.audit.finding import Finding
from dpfact_flower.audit.run import audit

__all__ = ["Finding", "audit"]
