"""Run all audits of one site, one after another."""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpfact_flower.audit.finding import Finding, count_of
from dpfact_flower.audit.likelihood import audit_likelihood
from dpfact_flower.audit.noise import audit_noise
from dpfact_flower.audit.sensitivity import audit_sensitivity
from dpfact_flower.audit.target import AuditTarget, subsample
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.errors import DPFactError, SettingsError, StateError
from dpfact_flower.machine.files import not_private
from dpfact_flower.machine.logs import ProgressCallback, no_progress
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site import answer
from dpfact_flower.site.store import has_jobs

_PATIENTS = 200
"""Maximum number of patients in an audit. Few suffice, as the same code processes every patient."""


def audit(
    data: SiteData | Cohort,
    solver: SolverSettings,
    privacy: PrivacySettings,
    *,
    site: str = "",
    state_dir: Path | None = None,
    quick: bool = False,
    seed: int = 0,
    watch: ProgressCallback = no_progress,
) -> tuple[Finding, ...]:
    """Audit privacy mode `patient` with a site's settings and data.

    The audit uses at most 200 patients of one site, by default the first site of a cohort. A noise
    seed in the settings counts as a fault, and is not used. If `state_dir` is given, the site's
    ledger and files are checked. `seed` determines the audit's random choices, but not the noise.
    """
    sites = (data,) if isinstance(data, SiteData) else data.sites
    chosen = next((one for one in sites if site in ("", one.name)), None)
    if chosen is None:
        names = ", ".join(one.name for one in sites)
        raise SettingsError(f"site: must be one of {names}; got {site!r}")
    folder = state_dir and (state_dir if (state_dir / LEDGER).exists() else state_dir / chosen.name)
    is_new = folder and folder.parent.is_dir() and not any(folder.parent.glob("*/"))
    if folder and not (folder.is_dir() or is_new):
        whose = f"{chosen.name}, or the folder in it that holds the ledger"
        raise StateError(f"{folder}: no such folder; give the state-dir that holds {whose}")
    rng = np.random.default_rng(seed)
    if privacy.privacy == "patient" and not privacy.patients:
        privacy = replace(privacy, patients=sum(one.tensor.n_patients for one in sites))
    target = AuditTarget.of(subsample(chosen, _PATIENTS, rng), solver, privacy, sites=len(sites))
    work: dict[str, Callable[[], tuple[Finding, ...]]] = {
        "sensitivity": lambda: audit_sensitivity(target, rng, trials=16 if quick else 48),
        "noise": lambda: audit_noise(
            target, rng, values=10_000 if quick else 40_000, seeded=privacy.noise_seed >= 0
        ),
        "likelihood": lambda: audit_likelihood(target, rng, runs=150 if quick else 1000),
    }
    if folder:
        work["state"] = lambda: audit_state(folder)
    findings: list[Finding] = []
    # Disable the log, because each audited run creates a ledger and logs a warning about it.
    logger = logging.getLogger(answer.__name__)
    before, logger.disabled = logger.disabled, True
    try:
        for name, check in work.items():
            watch(name, 0.0)
            findings += guarded(name, check)
            watch(name, 1.0)
    finally:
        logger.disabled = before
    return tuple(findings)


def audit_state(folder: Path) -> tuple[Finding, ...]:
    """Check that only the owner can access a site's folder, and that the ledger is intact."""
    faults: list[str] = []
    owner = (folder if folder.is_dir() else folder.parent).stat().st_uid
    for path in (folder.parent, folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # a temporary file of a site that is answering
            faults += not_private(path, owner)
    open_to_others = [*dict.fromkeys(faults)]  # files share the faults of their folders
    what, problems = "state: no ledger, as before the first run", list[str]()
    if (folder / LEDGER).exists() or has_jobs(folder):
        with Ledger(folder, create=False) as ledger:
            what, problems = "state: ledger", ledger.verify()
    return (
        count_of("state: rights of others", len(open_to_others), "; ".join(open_to_others[:3])),
        count_of(what, len(problems), "; ".join(problems[:3])),
    )


def guarded(name: str, check: Callable[[], tuple[Finding, ...]]) -> tuple[Finding, ...]:
    """Return the findings of `check`, or one failed finding if `check` raises an error."""
    try:
        return check()
    except DPFactError as error:  # our own messages contain no patient data
        detail = f"{type(error).__name__}: {error}"
    except Exception as error:  # other messages might contain patient data
        detail = type(error).__name__
    return (Finding(f"{name}: broke off", math.nan, (0.0, 0.0), detail),)
