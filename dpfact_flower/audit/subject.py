"""What is audited, and how an auditor plays a site: the site's own code, with other people's parts.

A `Subject` is a site's data with the settings of a run, planned. A `Transcript` is everything the
other side says in a run, chosen by the auditor, who may be as hostile as a server. A `World` plays
one data set through `PatientRound`, the code that a site runs, and keeps what a site would keep.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.client import DPFactClient
from dpfact_flower.data.site_data import SiteData, SiteSource
from dpfact_flower.errors import MessageError, SettingsError
from dpfact_flower.privacy import Release
from dpfact_flower.privacy.patient.kinds import KINDS, PlannedRelease, carried_by
from dpfact_flower.privacy.patient.plan import PatientPlan, plan_patient
from dpfact_flower.settings import PrivacySettings, SiteSettings, SolverSettings
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.store import SiteState
from dpfact_flower.tensor import Factors, Selection, SparseTensor, Weights
from dpfact_flower.tensor.arrays import LEAST_WEIGHT
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

Integers = NDArray[np.int64]
SIGMA = 2**24
"""Standard deviation of the noise in grid units, by the design. Not imported: the code under audit
must not be its own ruler."""
JOB = "audit"


@dataclass(frozen=True)
class Subject:
    """A site and the settings of a run, planned; make one with `of`.

    Attributes
    ----------
    site : SiteData
        With all its codes.
    solver : SolverSettings
    privacy : PrivacySettings
        Planned, with noise from the operating system.
    plan : PatientPlan
    """

    site: SiteData
    solver: SolverSettings
    privacy: PrivacySettings
    plan: PatientPlan

    @classmethod
    def of(
        cls, site: SiteData, solver: SolverSettings, privacy: PrivacySettings, *, sites: int = 1
    ) -> Subject:
        """Plan a run as its server would.

        Parameters
        ----------
        site : SiteData
        solver, privacy : settings
            As the run has them; a noise seed is left out.
        sites : int
            How many sites the run has.

        Raises
        ------
        SettingsError
            If the mode is not "patient", or the settings have no plan.
        """
        if privacy.privacy != "patient":
            raise SettingsError(f"privacy: audits are for 'patient'; got {privacy.privacy!r}")
        privacy.check_solver(solver)
        plan = plan_patient(privacy, sizes=site.tensor.feature_shape, rank=solver.rank, sites=sites)
        return cls(site, solver, replace(plan.settle(privacy), noise_seed=-1), plan)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each mode once some have been selected."""
        return self.privacy.codes_kept or self.site.tensor.feature_shape

    def name(self, planned: PlannedRelease) -> str:
        """What a release is called in findings."""
        return planned.name([vocabulary.name for vocabulary in self.site.vocabularies])

    def sensitivity(self, planned: PlannedRelease) -> float:
        """L2 distance by which one patient may move a release: by the design, not the plan."""
        return KINDS[planned.kind].sensitivity(self.privacy.bound)

    def transcript(
        self,
        anchors: Factors,
        selection: tuple[NDArray[np.int32], ...] = (),
        releases: Mapping[int, Release] | None = None,
        *,
        off: float | None = None,
    ) -> Transcript:
        """What a server says if it sends these factors in every round that has any.

        Parameters
        ----------
        anchors : tuple of ndarray of float32
            Global factors.
        selection : tuple of ndarray of int32
            Codes that were kept; empty where the run counts none.
        releases : mapping of int to Release, optional
            What the site is told that it released in a round.
        off : float, optional
            In place of the settings' own.
        """
        solver = self.solver if off is None else replace(self.solver, off=off)
        requests = {}
        for number in range(1, self.plan.rounds + 1):
            planned = self.plan.release_of(number)
            carries = carried_by(planned)
            request = RoundRequest(
                job=JOB,
                round=number,
                rounds=self.plan.rounds,
                seed=0,
                solver=solver,
                privacy=self.privacy,
                vocabulary="",
                anchors=anchors if "anchors" in carries else (),
                selection=selection if "selection" in carries else (),
                weights=self._weights(selection) if "weights" in carries else (),
            )
            # Through the protocol's own door: what it refuses, no server can ask for.
            requests[number] = RoundRequest.from_wire(*request.to_wire())
        return Transcript(anchors, selection, requests, releases or {})

    def _weights(self, selection: Selection) -> Weights:
        """Weights as far apart as a site takes them, where the settings have any."""
        if self.privacy.weighting == "none":
            return ()
        return tuple(
            np.geomspace(1, LEAST_WEIGHT, len(kept)).astype(np.float32) for kept in selection
        )

    def read(
        self, number: int, arrays: Sequence[NDArray[Any]], config: Mapping[str, Any]
    ) -> list[NDArray[Any]]:
        """The arrays of a reply as a server reads them; as they came, if it would refuse them."""
        planned = self.plan.release_of(number)
        try:
            reply = SiteReply.from_wire(arrays, config, [(planned.count,)] if planned else [])
        except MessageError:
            return list(arrays)
        return list(reply.arrays)

    def client(self, state_dir: Path, data: SiteSource | None = None) -> DPFactClient:
        """A real site, which checks, charges and keeps; its cap leaves room for what is asked."""
        settings = SiteSettings(
            site=self.site.name,
            state_dir=str(state_dir),
            allow_privacy="patient",
            max_epsilon=1e9,
            budget_delta=min(self.privacy.delta, 0.5),
            max_rank=self.solver.rank,  # which decides how much room is held, in memory here
            max_tau=max(50, self.solver.tau),
        )
        return DPFactClient(data or self.site, settings)


class Closed:
    """A site whose patients may not be read.

    Parameters
    ----------
    site : SiteData
        What is public of it is taken over.
    """

    def __init__(self, site: SiteData) -> None:
        self.name, self.vocabularies = site.name, site.vocabularies

    def read(self) -> SiteData:
        """Fail, so that it shows."""
        raise AssertionError("patients were read")


@dataclass(frozen=True, eq=False)
class Transcript:
    """What a site is told in a run, the same in every world; made by `Subject.transcript`.

    Attributes
    ----------
    anchors, selection : tuple of ndarray
        What requests carry.
    requests : mapping of int to RoundRequest
        By round.
    releases : mapping of int to Release
        What the site is told that it released in a round. For a missing round, what it did release.
    """

    anchors: Factors
    selection: tuple[NDArray[np.int32], ...]
    requests: Mapping[int, RoundRequest]
    releases: Mapping[int, Release]

    def request(self, number: int, job: str = JOB) -> RoundRequest:
        """What the site is asked in a round of a job."""
        return replace(self.requests[number], job=job)


class World:
    """One data set, played through a run; what rounds leave behind is this world's own (`Kept`).

    Parameters
    ----------
    subject : Subject
    transcript : Transcript
    site : SiteData, optional
        In place of the subject's.
    job, name : str
        The run's and the site's name.
    """

    def __init__(
        self,
        subject: Subject,
        transcript: Transcript,
        site: SiteData | None = None,
        *,
        job: str = JOB,
        name: str = "",
    ) -> None:
        self._transcript, self._job = transcript, job
        self._site = site or subject.site
        self._name = name or self._site.name
        self._state: SiteState | None = None
        self._released = dict(transcript.releases)

    def state(self) -> SiteState | None:
        """What the last round left behind; in patient mode that ought to be nothing."""
        return self._state

    def release(self, round_number: int) -> Release | None:
        """What the site is told that it released, or what it did release."""
        return self._released.get(round_number)

    def bounded(self, planned: PlannedRelease) -> Integers:
        """The exact un-noised sum of a planned release, in grid units."""
        return self._work(planned).bounded(planned, self).total

    def play(self, planned: PlannedRelease) -> tuple[Integers, Release]:
        """A round as the site runs it: the un-noised sum, and what is released."""
        work = self._work(planned)
        total = work.bounded(planned, self).total.copy()
        outcome = work.run(self)
        self._state = outcome.state
        self._released.setdefault(planned.round, outcome.release)
        return total, outcome.release

    def _work(self, planned: PlannedRelease) -> PatientRound:
        request = self._transcript.request(planned.round, self._job)
        return PatientRound(self._site, request, site=self._name, simulation=False)


def noise_of(
    planned: PlannedRelease, total: Integers, values: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Noise of released values, in units of what the plan says its standard deviation is."""
    return values.astype(np.float64) / planned.sigma - total / SIGMA


def with_tensor(site: SiteData, tensor: SparseTensor) -> SiteData:
    """The site with other patients, of whom nothing else is known."""
    return SiteData(site.name, tensor, site.vocabularies)


def subsample(site: SiteData, patients: int, rng: np.random.Generator) -> SiteData:
    """The site with some of its patients, drawn at random."""
    everybody = site.tensor.n_patients
    rows = np.sort(rng.permutation(everybody)[:patients])
    return with_tensor(site, site.tensor.select_patients(rows))


def random_selection(subject: Subject, rng: np.random.Generator) -> tuple[NDArray[np.int32], ...]:
    """Codes that a server might keep; empty where the run keeps all."""
    if not subject.privacy.codes_kept:
        return ()
    return tuple(
        np.sort(rng.permutation(size)[:kept]).astype(np.int32)
        for size, kept in zip(subject.site.tensor.feature_shape, subject.sizes, strict=True)
    )


def plain_factors(sizes: Sequence[int], rank: int, rng: np.random.Generator) -> Factors:
    """Factors as an honest server sends them: non-negative columns of norm 1."""
    made = (rng.gamma(0.3, 1.0, (size, rank)) + 1e-3 for size in sizes)
    return tuple((factor / np.linalg.norm(factor, axis=0)).astype(np.float32) for factor in made)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the audit's own state-dirs, in memory if possible; deleted afterwards.

    A site waits for its disk with every charge, as it must; thousands of audited runs need not.
    """
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="dpfact-audit-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
