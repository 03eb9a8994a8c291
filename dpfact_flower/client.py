"""`DPFactClient`, a Flower NumPyClient: one round at a site, and what may be said about it.

The order of work is the privacy policy: check what is asked, and what it will cost, against what
the site allows; only then touch data; charge the release to the ledger, on disk; only then send it.
A request that is repeated gets the kept bytes. Whatever goes wrong, the server learns a code, and
one and the same code for everything that goes wrong after data was touched.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.client import NumPyClient
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import (
    DPFactError,
    MessageError,
    PrivacyRefusedError,
    RoundFailedError,
    SettingsError,
    StateError,
)
from dpfact_flower.files import Version, locked, version
from dpfact_flower.patient_site import PatientRound
from dpfact_flower.privacy import Release, account, release_unprotected
from dpfact_flower.privacy.ledger import LEDGER, LastAnswer, Ledger, ReleaseKey
from dpfact_flower.privacy.patient import step_of
from dpfact_flower.protocol import RoundRequest, SiteReply, public_reason
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site import LocalRound, RoundOutcome, RoundWork
from dpfact_flower.state import RoundMeasures, SiteState, SiteStore, has_jobs

_logger = logging.getLogger(__name__)
NEW_LEDGER = "site %s: begins a new ledger in %s, with a whole budget; other ledgers there: %s"
"""Warning of a ledger that is begun: right before a site's first run, an alarm after it."""
NUM_EXAMPLES = 1
"""Sent with every reply in place of the number of patients, which is nobody else's business."""


class RoundRefusedError(DPFactError):
    """What leaves a site about a round that failed: a code. Made by `DPFactClient.fit` alone."""

    code = "refused"


class DPFactClient(NumPyClient):
    """A hospital in a DPFact run.

    Parameters
    ----------
    data : SiteData
    settings : SiteSettings
        `state_dir` and `allow_privacy` must be given.
    simulation : bool
        Whether this process plays a site: then noise may be seeded, and nothing waits for the disk:
        there is no patient whose budget a power loss could hide.

    Raises
    ------
    SettingsError
        If a setting that a site must choose for itself is missing.
    """

    def __init__(self, data: SiteData, settings: SiteSettings, *, simulation: bool = False) -> None:
        if not simulation:
            _check_choices(settings)
        self._data = data
        self._settings = settings
        self._simulation = simulation
        self._site = settings.site or data.name
        self._root = Path(settings.state_dir).expanduser()
        self._fingerprint = data.fingerprint

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Answer one round: global feature factors in, released feature factors out.

        Raises
        ------
        RoundRefusedError
            For whatever reason; its text holds a code and nothing else.
        """
        try:
            request = RoundRequest.from_wire(parameters, config)
            release = self.answer(request)
        except Exception as error:  # nothing an error says may reach the server
            raise RoundRefusedError(log_privately(self._site, error)) from None
        arrays, reply = SiteReply(self._site, release.arrays, step_of(release)).to_wire()
        return list(arrays), NUM_EXAMPLES, dict(reply)

    def answer(self, request: RoundRequest) -> Release:
        """Compute, charge and keep the release for a request, or find it if it was made before.

        Raises
        ------
        DPFactError
            With the reason; `fit` keeps it at the site.
        """
        # Everything before the data is touched decides by public facts and the site's own record.
        self._check_allowed(request)
        self._check_vocabulary(request)
        work = self._work(request)
        folder = self._root / self._site
        with locked(folder), self._ledger(folder) as ledger:
            key = ReleaseKey(self._fingerprint, request.job, request.round, request.digest)
            store = self._store(request.job)
            record = _JobRecord(request.job, ledger, store)
            sent = record.answer(key, request)
            if sent is not None:
                _logger.info("round %d asked again: sending what was sent", request.round)
                return sent
            self._check_follows(request, record.last)
            self._check_budget(work, ledger)
            outcome = self._compute(request, work, record)
            # Either makes the job's folder: from then on, a ledger that is gone was taken away.
            if outcome.state is None:
                store.begin()
            else:
                store.save(outcome.state)
            head = ledger.charge(key, request.terms, outcome.release)
            if outcome.state is not None:
                store.keep_only(request.round)
            self._note(store, outcome.measures)
        # A hospital wants it in its log, to compare the ledger with later; a simulation has none.
        level = logging.DEBUG if self._simulation else logging.INFO
        _logger.log(level, "round %d: %s; ledger: %s", request.round, outcome.release.label, head)
        return outcome.release

    def get_parameters(self, config: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Refuse: a site has no model to start others from; the server's public seed does that."""
        raise RoundRefusedError(public_reason(MessageError()))

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Refuse: a loss is a function of the patients; a site keeps it (`history.jsonl`)."""
        raise RoundRefusedError(public_reason(PrivacyRefusedError()))

    def _ledger(self, folder: Path) -> Ledger:
        begin = not (folder / LEDGER).exists() and self._may_begin(folder)
        return Ledger(folder, create=begin, durable=not self._simulation)

    def _store(self, job: str) -> SiteStore:
        return SiteStore(
            self._root, self._site, job, self._fingerprint, simulation=self._simulation
        )

    def _check_allowed(self, request: RoundRequest) -> None:
        allowed = self._settings.allow_privacy.split(",")
        if request.privacy.privacy not in allowed:
            raise PrivacyRefusedError(
                f"the run asks for privacy {request.privacy.privacy!r}; this site's allow-privacy "
                f"is {self._settings.allow_privacy!r}"
            )
        for name, asked, most in (
            ("rank", request.solver.rank, self._settings.max_rank),
            ("tau", request.solver.tau, self._settings.max_tau),
        ):
            if asked > most:
                raise MessageError(f"{name}: the run asks for {asked}, this site's limit is {most}")
        # A folder in the place of SQLite's journal would shut the ledger for good.
        if request.job.lower().startswith(LEDGER):
            raise MessageError(f"job: {request.job!r} is a name of the ledger's own files")

    def _may_begin(self, folder: Path) -> bool:
        """Whether a ledger may be made anew: it has a whole budget, so only where nothing was.

        Raises
        ------
        StateError
            If this very data has been released from under another name.
        """
        if has_jobs(folder):
            return False
        if self._simulation:
            return True
        others = sorted(path.parent.name for path in self._root.glob(f"*/{LEDGER}"))
        for name in others:
            with Ledger(self._root / name, create=False) as ledger:
                if any(row.fingerprint == self._fingerprint for row in ledger.rows()):
                    raise StateError(
                        f"{self._root}: the budget of this very data is kept under the name "
                        f"{name!r}; set site to it in the node config"
                    )
        _logger.warning(NEW_LEDGER, self._site, self._root, ", ".join(others) or "none")
        return True

    def _check_vocabulary(self, request: RoundRequest) -> None:
        own = joint_digest(self._data.vocabularies)
        if request.vocabulary not in ("", own):
            raise MessageError(
                "the run's vocabularies are not this site's: their digests differ; "
                "prepare the site's data with the code lists of the run"
            )

    def _work(self, request: RoundRequest) -> RoundWork:
        """The mode's part of a round, once the request is known to fit this site."""
        kind = PatientRound if request.privacy.privacy == "patient" else LocalRound
        request = self._localised(request)
        return kind(self._data, request, site=self._site, simulation=self._simulation)

    def _check_follows(self, request: RoundRequest, last: LastAnswer | None) -> None:
        """Refuse a round that is over, and settings that change in the middle of a job."""
        if last is None:
            return
        if last.fingerprint != self._fingerprint:
            raise StateError(
                f"job {request.job!r} was begun with other data; now that it has changed, start a "
                "new job"
            )
        if request.round <= last.round:
            raise MessageError(
                f"round {request.round} of job {request.job!r} is stale: this site has finished "
                f"round {last.round}"
            )
        if request.terms != last.terms:
            raise MessageError(
                f"the settings of job {request.job!r} have changed since round "
                f"{last.round}; a change needs a new job"
            )

    def _check_budget(self, work: RoundWork, ledger: Ledger) -> None:
        """Count what is asked with all that the site has released, in whatever job."""
        events = work.cost()
        if not events:
            return
        if any(row.unprotected for row in ledger.rows()):
            raise PrivacyRefusedError(
                "the ledger holds releases without noise: no epsilon covers this site's patients; "
                "other patients need another state-dir"
            )
        before = ledger.events()
        kinds = {(event.unit, event.neighbours) for event in (*before, *events)}
        if len(kinds) > 1:
            raise PrivacyRefusedError(
                "the ledger holds releases of another unit of privacy, which do not add up with "
                f"what is asked: {' and '.join(sorted(map('/'.join, kinds)))}"
            )
        limit = self._settings.max_epsilon
        if not limit:
            return
        total = account((*before, *events), self._settings.budget_delta)
        if total.headline.epsilon > limit:
            raise PrivacyRefusedError(
                f"max-epsilon is {limit:g}; with {work.reach} the site would stand at "
                f"{total.headline}"
            )

    def _compute(self, request: RoundRequest, work: RoundWork, record: _JobRecord) -> RoundOutcome:
        """Run the round; whatever fails in it leaves as one and the same code."""
        try:
            return work.run(record)
        except Exception as error:  # which error it is may depend on the patients
            log_privately(self._site, error)
            raise RoundFailedError(f"round {request.round} failed, see above") from None

    def _note(self, store: SiteStore, measures: RoundMeasures | None) -> None:
        """Keep the site's own measures; the release stands whether or not that works."""
        if measures is None:
            return
        try:
            store.note(measures)
        except OSError as error:
            _logger.warning("history.jsonl cannot be written (%s)", type(error).__name__)

    def _localised(self, request: RoundRequest) -> RoundRequest:
        """The request with what the site decides for itself: its l2,1 weight."""
        if self._settings.site_mu < 0:
            return request
        # off = 0, or the run's relative weight would take the place of the site's own.
        own = replace(request.solver, mu=self._settings.site_mu, off=0.0)
        return replace(request, solver=own)


class _JobRecord:
    """What this site kept of a job, for its next round."""

    def __init__(self, job: str, ledger: Ledger, store: SiteStore) -> None:
        self._job, self._ledger, self._store = job, ledger, store
        self.last = ledger.last(job)

    def answer(self, key: ReleaseKey, request: RoundRequest) -> Release | None:
        """What was released for this very request before; no round is answered before its turn."""
        last = self.last
        if last is None or key.round > last.round:
            return None
        kept = self._ledger.answer(key)
        is_last = (key.request, key.fingerprint) == (last.request, last.fingerprint)
        if kept is None and is_last and request.privacy.privacy == "none":
            return self._unprotected(key, request.terms)
        return kept

    def _unprotected(self, key: ReleaseKey, terms: str) -> Release | None:
        """The last round's release without noise, out of the state: the ledger has its hash."""
        state = self.state()
        if state is None:
            return None
        release = release_unprotected(state.factors[1:])
        return release if self._ledger.has(key, terms, release) else None

    def state(self) -> SiteState | None:
        """The site's factors after the last round that was answered."""
        return self._store.load(self.last.round) if self.last else None

    def release(self, round_number: int) -> Release | None:
        """What was released in a round; None where it was not answered."""
        try:
            return self._ledger.release_of(self._job, round_number)
        except StateError:
            return None


def _check_choices(settings: SiteSettings) -> None:
    """What a hospital must choose for itself: there is no default to fall back to."""
    for key, value in (
        ("state-dir", settings.state_dir),
        ("allow-privacy", settings.allow_privacy),
    ):
        if not value:
            raise SettingsError(f"{key}: must be set in the site's node config")
    if not Path(settings.state_dir).expanduser().is_absolute():
        raise SettingsError(
            f"state-dir: must be an absolute path, or the record of releases would depend on where "
            f"the process was started; got {settings.state_dir!r}"
        )
    noisy = settings.allow_privacy != "none"
    if noisy != (settings.max_epsilon > 0):
        raise SettingsError(
            "max-epsilon: must be above 0 where allow-privacy names a mode with noise, and 0 where "
            f"it is 'none', which no epsilon bounds; got {settings.max_epsilon:g} with "
            f"{settings.allow_privacy!r}"
        )
    if noisy and "none" in settings.allow_privacy.split(","):
        raise SettingsError("allow-privacy: 'none' beside a mode with noise would void max-epsilon")


def load_site(path: str | Path) -> SiteData:
    """A site's data file, kept in memory for as long as the file stays the same.

    Raises
    ------
    DataError
        If it is missing or invalid.
    """
    path = Path(path)
    try:
        found = version(path)
    except OSError:
        return SiteData.load(path)  # says what is wrong
    return _load_version(found)


@lru_cache(maxsize=16)  # one process may play many sites
def _load_version(file: Version) -> SiteData:
    return SiteData.load(file.path)


def log_privately(site: str, error: Exception) -> str:
    """Write an error to the site's own log; return the text that may leave.

    Our own errors hold no patient's value, so their text is logged. Anybody else's may quote the
    data ("could not convert ..."): of those, the kind and the place are logged, not the text.
    """
    if isinstance(error, DPFactError):
        _logger.error("site %s: %s: %s", site, error.code, error)
    else:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        place = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
        _logger.error("site %s: unexpected %s at %s", site, type(error).__name__, place)
    return public_reason(error)
