"""Audits of patient mode: whether the code does what the proof says.

Six audits, each against the code that sites run, with real data, settings and message bytes:
`audit_sensitivity`, `audit_noise`, `audit_likelihood`, `audit_ledger`, `audit_replies`,
`audit_folders`; `audit`
runs them all. A proof says what code ought to do; an audit can find that it does not. It can't
prove that it does: ``docs/how-to/audit.md`` says what each finds, and what none of them would.

Nothing is sent or charged, and no state-dir but the audit's own is touched. Findings hold no value
of a patient; they are for the site alone, like everything computed from its data without noise.
"""

from dpfact_flower.audit.finding import Finding
from dpfact_flower.audit.folders import audit_folders
from dpfact_flower.audit.ledger import audit_ledger
from dpfact_flower.audit.likelihood import audit_likelihood
from dpfact_flower.audit.noise import audit_noise
from dpfact_flower.audit.replies import audit_replies
from dpfact_flower.audit.run import AUDITS, audit
from dpfact_flower.audit.sensitivity import audit_sensitivity
from dpfact_flower.audit.subject import Subject

__all__ = [
    "AUDITS",
    "Finding",
    "Subject",
    "audit",
    "audit_folders",
    "audit_ledger",
    "audit_likelihood",
    "audit_noise",
    "audit_replies",
    "audit_sensitivity",
]
