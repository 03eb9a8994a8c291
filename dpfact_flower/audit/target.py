"""The site and the run under audit, and a simulated site that executes a real site's code."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.client_app import DPFactClient
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import Release
from dpfact_flower.privacy.patient.plan import PatientPlan, plan_patient
from dpfact_flower.privacy.patient.releases import PlannedRelease, carried_by
from dpfact_flower.settings import PrivacySettings, SiteSettings, SolverSettings
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.round import JobState
from dpfact_flower.tensor import Factors, Floats, Selection
from dpfact_flower.wire.protocol import RoundRequest

Integers = NDArray[np.int64]
SIGMA = 2**24
"""Intended standard deviation of the noise, in grid units. The value is not imported, because the
audited code must not supply its own reference."""
JOB = "audit"


@dataclass(frozen=True)
class AuditTarget:
    """The audited site, with the settings and plan of a run. Create instances with `of`."""

    site: SiteData
    solver: SolverSettings
    privacy: PrivacySettings
    plan: PatientPlan

    @classmethod
    def of(
        cls, site: SiteData, solver: SolverSettings, privacy: PrivacySettings, *, sites: int = 1
    ) -> "AuditTarget":
        """Plan a run of `sites` sites as a server would plan it, but without a noise seed."""
        if privacy.privacy != "patient":
            raise SettingsError(f"privacy: audits are for 'patient'; got {privacy.privacy!r}")
        if privacy.secure_sums:
            raise SettingsError("secure-sums: audits are for sites alone; set it to false")
        plan = plan_patient(privacy, sizes=site.tensor.feature_shape, rank=solver.rank, sites=sites)
        return cls(site, privacy.sent(solver), replace(plan.settings, noise_seed=-1), plan)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of codes that the run uses in each mode."""
        return self.privacy.codes_kept or self.site.tensor.feature_shape

    def name(self, planned: PlannedRelease) -> str:
        """Return a release's name as shown in the findings."""
        return planned.name([vocabulary.name for vocabulary in self.site.vocabularies])

    def transcript(
        self,
        anchors: Factors,
        selection: Selection = (),
        releases: Mapping[int, Release] | None = None,
        *,
        relative_l21: float = 0.0,
    ) -> "Transcript":
        """Return the transcript of a run in which the server sends `anchors` as global factors."""
        solver, requests = replace(self.solver, relative_l21=relative_l21), {}
        for number in range(1, self.plan.rounds + 1):
            carries = carried_by(self.plan.release_of(number))
            request = RoundRequest(
                JOB, number, self.plan.rounds, 0, solver, self.privacy, "", rule="patient",
                anchors=anchors if "anchors" in carries else (),
                selection=selection if "selection" in carries else (),
            )  # fmt: skip
            # Parse the request, because a server can't send what a site's parser refuses.
            requests[number] = RoundRequest.from_wire(*request.to_wire())
        return Transcript(anchors, selection, requests, releases or {})

    def client(self, state_dir: Path, data: SiteData) -> DPFactClient:
        """Return the client that a hospital would run, with enough budget for the audited run."""
        settings = SiteSettings(
            site=self.site.name,
            state_dir=str(state_dir),
            allow_privacy="patient",
            max_epsilon=1e9,
            budget_delta=min(self.privacy.delta, 0.5),
            max_rank=self.solver.rank,  # determines how much space is reserved (here, in memory)
            max_tau=max(50, self.solver.tau),
        )
        return DPFactClient(data, settings)


@dataclass(frozen=True, eq=False)
class Transcript:
    """The requests that a server sends to a site in one run (see `AuditTarget.transcript`).

    `releases` maps a round's number to a release that replaces the site's own release.
    """

    anchors: Factors
    selection: Selection
    requests: Mapping[int, RoundRequest]
    releases: Mapping[int, Release]


class SimulatedSite:
    """A simulated site, which answers a run's requests and keeps its state between rounds."""

    def __init__(
        self, transcript: Transcript, site: SiteData, *, job: str = JOB, name: str = ""
    ) -> None:
        self._transcript, self._site, self._job = transcript, site, job
        self._name = name or site.name
        self._released = dict(transcript.releases)
        self.kept = JobState(release=self._released.get)

    def play(self, planned: PlannedRelease) -> tuple[Integers, Release]:
        """Run a round as a real site would, and return the integer sum and the noisy release."""
        request = replace(self._transcript.requests[planned.round], job=self._job)
        work = PatientRound(self._site.vocabularies, request, site=self._name, simulation=False)
        total = work.bounded(self._site, planned, self.kept).total.copy()
        outcome = work.run(self._site, self.kept)
        self.kept = replace(self.kept, state=outcome.state)  # None, unless the code has a fault
        released = outcome.release
        assert isinstance(released, Release)
        self._released.setdefault(planned.round, released)
        return total, released


def noise_of(planned: PlannedRelease, total: Integers, values: NDArray[np.float32]) -> Floats:
    """Return the noise in released values, divided by the planned standard deviation."""
    return values.astype(np.float64) / planned.sigma - total / SIGMA


def subsample(site: SiteData, patients: int, rng: np.random.Generator) -> SiteData:
    """Return a copy of the site with at most `patients` patients, chosen at random."""
    rows = np.sort(rng.permutation(site.tensor.n_patients)[:patients])
    return SiteData(site.name, site.tensor.select_patients(rows), site.vocabularies)


def random_selection(target: AuditTarget, rng: np.random.Generator) -> Selection:
    """Return a random selection of codes, such as a server might send."""
    if not target.privacy.codes_kept:
        return ()
    return tuple(
        np.sort(rng.permutation(size)[:kept]).astype(np.int32)
        for size, kept in zip(target.site.tensor.feature_shape, target.sizes, strict=True)
    )
