"""Use a site's own data to test whether privacy mode `patient` provides its claimed guarantee.

``docs/how-to/audit.md`` describes the checks and their limits. An audit sends no data and uses no
privacy budget. Keep the findings at the site, because the findings come from patients' data.
"""

from dpfact_flower.audit.finding import Finding
from dpfact_flower.audit.run import audit

__all__ = ["Finding", "audit"]
