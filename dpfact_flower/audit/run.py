"""All audits of one site, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from dpfact_flower.audit.finding import Finding, Tell, failed
from dpfact_flower.audit.folders import audit_folders
from dpfact_flower.audit.ledger import audit_ledger
from dpfact_flower.audit.likelihood import audit_likelihood
from dpfact_flower.audit.noise import audit_noise
from dpfact_flower.audit.replies import audit_replies
from dpfact_flower.audit.sensitivity import audit_sensitivity
from dpfact_flower.audit.subject import Subject, subsample
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.errors import DPFactError, SettingsError
from dpfact_flower.machine.watch import Watch
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site.answer import NEW_LEDGERS

AUDITS = ("sensitivity", "noise", "likelihood", "ledger", "replies", "folders")
"""Names of the audits, in the order in which they run."""
_PATIENTS = 200
"""Patients of a site that take part: the code is the same for each of them."""


def audit(
    data: SiteData | Cohort,
    solver: SolverSettings,
    privacy: PrivacySettings,
    *,
    site: str = "",
    quick: bool = False,
    seed: int = 0,
    watch: Watch | None = None,
) -> tuple[Finding, ...]:
    """Audit patient mode on a site's own settings and data.

    Parameters
    ----------
    data : SiteData or Cohort
        At most 200 patients of one site are used, drawn at random.
    solver, privacy : settings
        Of the run, planned or not. A noise seed is left out, and reported.
    site : str
        Which site of a cohort; by default the first.
    quick : bool
        Fewer trials and runs: finds gross faults in a fraction of the time.
    seed : int
        Of what the auditor chooses; the noise has no seed.
    watch : callable, optional
        Told of progress.

    Returns
    -------
    tuple of Finding
        An audit that breaks off is a finding too, and fails.

    Raises
    ------
    SettingsError
        If the mode is not "patient", the settings have no plan, or there is no such site.
    """
    chosen, sites = _site_of(data, site)
    rng = np.random.default_rng(seed)
    if privacy.privacy == "patient" and not privacy.patients:
        everybody = data.sites if isinstance(data, Cohort) else (data,)
        privacy = replace(privacy, patients=sum(one.tensor.n_patients for one in everybody))
    subject = Subject.of(subsample(chosen, _PATIENTS, rng), solver, privacy, sites=sites)
    seeded = privacy.noise_seed >= 0
    work: dict[str, Callable[[Tell], tuple[Finding, ...]]] = {
        "sensitivity": lambda tell: audit_sensitivity(
            subject, rng, trials=16 if quick else 48, tell=tell
        ),
        "noise": lambda tell: audit_noise(
            subject, rng, coordinates=10_000 if quick else 40_000, seeded=seeded, tell=tell
        ),
        "likelihood": lambda tell: audit_likelihood(
            subject, rng, runs=150 if quick else 1000, tell=tell
        ),
        "ledger": lambda tell: audit_ledger(subject, rng, tell=tell),
        "replies": lambda tell: audit_replies(subject, rng, tell=tell),
        "folders": lambda tell: audit_folders(subject, rng, tell=tell),
    }
    findings: list[Finding] = []
    with _new_ledgers_expected():
        for name in AUDITS:
            findings += _guarded(name, work[name], watch)
    return tuple(findings)


@contextmanager
def _new_ledgers_expected() -> Iterator[None]:
    """Silence the sites' warnings of new ledgers: each audited run has one of its own.

    A site's staff are told to stop when they see that warning, so it must not appear needlessly.
    """
    logger = logging.getLogger(NEW_LEDGERS)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _guarded(
    name: str, work: Callable[[Tell], tuple[Finding, ...]], watch: Watch | None
) -> tuple[Finding, ...]:
    """The findings of an audit, or the single finding that it broke off."""

    def tell(share: float) -> None:
        if watch:
            watch(name, share)

    try:
        return work(tell)
    except DPFactError as error:  # our own texts hold nothing of a patient
        return (failed(f"{name}: broke off", f"{type(error).__name__}: {error}"),)
    except Exception as error:  # of others' errors, only the kind
        return (failed(f"{name}: broke off", type(error).__name__),)


def _site_of(data: SiteData | Cohort, name: str) -> tuple[SiteData, int]:
    """The site to audit, and how many there are."""
    if isinstance(data, SiteData):
        sites: tuple[SiteData, ...] = (data,)
    else:
        sites = data.sites
    for site in sites:
        if name in ("", site.name):
            return site, len(sites)
    raise SettingsError(f"site: must be one of {', '.join(s.name for s in sites)}; got {name!r}")
