"""`Site`, a hospital in a run: one request in, one release out. Flower stays outside.

The order of work is the privacy policy: check what is asked, and what it will cost, against what
the site allows; only then touch data; charge the release to the ledger, on disk; only then hand it
out. A request that is repeated gets the kept bytes. Whatever goes wrong after data was touched is
one and the same error.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

from dpfact_flower.data.site_data import SiteSource
from dpfact_flower.errors import MessageError, RoundFailedError, StateError
from dpfact_flower.machine.files import locked
from dpfact_flower.privacy import Release, release_nothing, release_unprotected
from dpfact_flower.privacy.ledger import LEDGER, Ledger, ReleaseKey
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site import admission
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.round import RoundOutcome, RoundWork, localised
from dpfact_flower.site.rules import site_rules
from dpfact_flower.site.store import RoundMeasures, SiteState, SiteStore, has_jobs
from dpfact_flower.wire.protocol import RoundRequest

_logger = logging.getLogger(__name__)
NEW_LEDGERS = f"{__name__}.new_ledgers"
"""Logger of warnings that a ledger is begun: right before a site's first run, an alarm after it."""


class Site:
    """A hospital, as `dpfact_flower.server.coordinator.Coordinator` is a server.

    Parameters
    ----------
    source : SiteSource
        The site's data, or its file, whose patients are read when a round needs them.
    settings : SiteSettings
        `state_dir` and `allow_privacy` must be given.
    simulation : bool
        Whether this process plays a site: then noise may be seeded, and nothing waits for the disk:
        there is no patient whose budget a power loss could hide.

    Raises
    ------
    SettingsError
        If a setting that a site must choose for itself is missing.

    Attributes
    ----------
    name : str
        Public; it stands in replies.
    """

    def __init__(
        self, source: SiteSource, settings: SiteSettings, *, simulation: bool = False
    ) -> None:
        if not simulation:
            admission.check_choices(settings)
        self.name = settings.site or source.name
        self._source = source
        self._settings = settings
        self._simulation = simulation
        self._root = Path(settings.state_dir).expanduser()

    @property
    def _fingerprint(self) -> str:
        """Identity of the data; reads all of it."""
        return self._source.read().fingerprint

    def answer(self, request: RoundRequest) -> Release:
        """Compute, charge and keep the release for a request, or find it if it was made before.

        Raises
        ------
        DPFactError
            With a reason that is for the site alone; see `disclosure.log_privately`.
        """
        # Everything before the data is touched decides by public facts and the site's own record.
        admission.check_allowed(request, self._settings)
        admission.check_vocabulary(request, self._source)
        work = self._work(request)
        folder = self._root / self.name
        if work.ends:
            return self._end(request, folder)
        with locked(folder), self._ledger(folder) as ledger:
            last = ledger.last(request.job)
            if last is None or request.round > last.round:
                # A refusal costs nothing, so these come before the patients are read.
                if last is not None:
                    admission.check_terms(request, last)
                admission.check_budget(work, ledger, self._settings)
            key = ReleaseKey(self._fingerprint, request.job, request.round, request.digest)
            store = self._store(request.job, self._fingerprint)
            record = _JobRecord(request.job, ledger, store)
            sent = record.answer(key, request)
            if sent is None and record.is_last(key) and _is_unprotected_start(request):
                again = self._compute(request, work, record).release  # it has left no state
                sent = again if ledger.has(key, request.terms, again) else None
            if sent is not None:
                _logger.info("round %d asked again: sending what was sent", request.round)
                return sent
            admission.check_follows(request, record.last, self._fingerprint)
            admission.check_selection(request, store)
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

    def _end(self, request: RoundRequest, folder: Path) -> Release:
        """Answer a last round that asks for nothing: keep what it says, and look at no patient."""
        with locked(folder):
            if not (folder / LEDGER).exists():
                raise MessageError(f"job {request.job!r}: this site has no ledger yet, nor answers")
            with Ledger(folder, create=False, durable=not self._simulation) as ledger:
                last = admission.check_paid(request, ledger)
            store = self._store(request.job, last.fingerprint)
            admission.check_selection(request, store)
            try:
                store.keep_ending(*request.to_wire())
            except OSError as error:  # the run is over for the server, whatever is kept here
                _logger.error(
                    "site %s: the end of job %s cannot be kept (%s)",
                    self.name, request.job, error.strerror,
                )  # fmt: skip
        _logger.log(
            logging.DEBUG if self._simulation else logging.INFO,
            "job %s has ended; `dpfact site refit` fits this site's own model", request.job,
        )  # fmt: skip
        return release_nothing()

    def _work(self, request: RoundRequest) -> RoundWork:
        """The rule's part of a round, once the request is known to fit this site."""
        rule = site_rules.find(request.rule_name)
        request = localised(request, self._settings)
        return rule(self._source, request, site=self.name, simulation=self._simulation)

    def _ledger(self, folder: Path) -> Ledger:
        begin = not (folder / LEDGER).exists() and self._may_begin(folder)
        return Ledger(folder, create=begin, durable=not self._simulation)

    def _may_begin(self, folder: Path) -> bool:
        """Whether a ledger may be made anew: it has a whole budget, so only where nothing was."""
        if has_jobs(folder):
            return False
        if self._simulation:
            return True
        others = admission.check_no_other_name(self._root, self._fingerprint)
        logging.getLogger(NEW_LEDGERS).warning(
            "site %s: begins a new ledger in %s, with a whole budget; other ledgers there: %s",
            self.name, self._root, ", ".join(others) or "none",
        )  # fmt: skip
        return True

    def _store(self, job: str, fingerprint: str) -> SiteStore:
        return SiteStore(self._root, self.name, job, fingerprint, simulation=self._simulation)

    def _compute(self, request: RoundRequest, work: RoundWork, record: _JobRecord) -> RoundOutcome:
        """Run the round; whatever fails in it leaves as one and the same code."""
        try:
            outcome = work.run(record)
            _check_announced(work, outcome.release)
        except Exception as error:  # which error it is may depend on the patients
            log_privately(self.name, error)
            raise RoundFailedError(f"round {request.round} failed, see above") from None
        return outcome

    def _note(self, store: SiteStore, measures: RoundMeasures | None) -> None:
        """Keep the site's own measures; the release stands whether or not that works."""
        if measures is None:
            return
        try:
            store.note(measures)
        except OSError as error:
            _logger.warning("history.jsonl cannot be written (%s)", type(error).__name__)


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
        if kept is None and self.is_last(key) and request.privacy.privacy == "none":
            return self._unprotected(key, request.terms)
        return kept

    def is_last(self, key: ReleaseKey) -> bool:
        """Whether it is the very request that was answered last."""
        last = self.last
        return last is not None and (key.request, key.fingerprint) == (
            last.request, last.fingerprint,
        )  # fmt: skip

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


def _is_unprotected_start(request: RoundRequest) -> bool:
    return request.privacy.privacy == "none" and not request.anchors


def _check_announced(work: RoundWork, release: Release) -> None:
    """Hold a rule to its word: what costs more than its `cost` was never admitted."""
    announced = math.fsum(event.rho for event in work.cost())
    spent = math.fsum(event.rho for event in release.events)
    unprotected = bool(announced and release.arrays and not release.events)
    if unprotected or spent > announced * (1 + 1e-12):
        raise StateError("the rule releases more than it announced")
