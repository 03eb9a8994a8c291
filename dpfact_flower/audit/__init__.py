"""Test, with a site's own data, whether privacy mode `patient` keeps its proven guarantee.

``docs/how-to/audit.md`` describes the findings and the limits of audits. An audit sends no data and
uses no privacy budget. Findings contain no values from patients' records. However, findings are
computed without noise, so only the site may see them.
"""

from dpfact_flower.audit.finding import Finding
from dpfact_flower.audit.run import audit

__all__ = ["Finding", "audit"]
