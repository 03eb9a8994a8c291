"""Test on a site's own data whether privacy mode `patient` provides its claimed guarantee.

``docs/how-to/audit.md`` describes each check, and the faults that no audit can find. An audit sends
no data and uses no privacy budget. Only the site may see the findings, because they are computed
from patients' data without noise.
"""

from dpfact_flower.audit.finding import Finding
from dpfact_flower.audit.run import audit

__all__ = ["Finding", "audit"]
