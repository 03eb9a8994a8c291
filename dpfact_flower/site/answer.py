"""`Site`, a hospital in a run: one request in, one release out. Flower stays outside.

The order of work is the privacy policy: check what is asked, and what it will cost, against what
the site allows, and that there is room on the disk; only then read the patients; charge the
release to the ledger, on disk; only then hand it out. A request that is repeated gets the kept
bytes, and no patient is read. Whatever goes wrong after the patients were read is one and the same
error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import clear_frames

from dpfact_flower.data.site_data import SiteSource, forget_patients
from dpfact_flower.errors import MessageError, RoundFailedError, StateError, code_in
from dpfact_flower.machine.files import disk_errors, locked
from dpfact_flower.privacy import Release, release_nothing, release_unprotected
from dpfact_flower.privacy.ledger import (
    LEDGER,
    Ledger,
    LedgerRow,
    ReleaseKey,
    data_key,
    data_tag,
    read_key,
)
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site import admission
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.hold import Hold
from dpfact_flower.site.looks import check_looks, counted_look
from dpfact_flower.site.refusals import count_refusal
from dpfact_flower.site.room import held, room_for
from dpfact_flower.site.round import RoundOutcome, RoundWork, localised
from dpfact_flower.site.rules import site_rules
from dpfact_flower.site.set_back import check_not_set_back
from dpfact_flower.site.store import SiteState, SiteStore, has_jobs
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
    beside : collection of str
        Names of sites that are known to hold other patients, and may have a ledger in the same
        `state_dir`: those that one process has in its memory.

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
        self,
        source: SiteSource,
        settings: SiteSettings,
        *,
        simulation: bool = False,
        beside: Collection[str] = (),
    ) -> None:
        if not simulation:
            admission.check_choices(settings)
            admission.check_data_site(source.name, settings)
        self.name = settings.site or source.name
        self._source = source
        self._settings = settings
        self._simulation = simulation
        self._beside = beside
        self._root = Path(settings.state_dir).expanduser()

    @property
    def _fingerprint(self) -> str:
        """Identity of the data, as the ledger has it; reads all of it."""
        return data_tag(self._root / self.name, self._source.read().fingerprint)

    def answer(self, request: RoundRequest, hold: Hold | None = None) -> Release:
        """Compute, charge and keep the release for a request, or find it if it was made before.

        Parameters
        ----------
        request : RoundRequest
        hold : Hold, optional
            Of the reply; it knows the round's deadline, after which nothing is charged. The site's
            folder stays locked until the reply is due: or another request, which waits for the
            folder, could find out when the round was over, by being late itself. Its own time
            begins when it has the folder.

        Raises
        ------
        DPFactError
            With a reason that is for the site alone; see `disclosure.log_privately`.
        """
        hold = hold or Hold(0)
        try:
            return self._answered(request, hold)
        except Exception as error:
            if hold.charged is not None:  # it is paid for: whatever follows does not take it back
                log_privately(self.name, error)
                return hold.charged
            if hold.read and not isinstance(error, RoundFailedError):
                raise self._failed(request, error) from None
            raise

    def _failed(self, request: RoundRequest, error: Exception) -> RoundFailedError:
        """What leaves once patients were read: which error it is may depend on them."""
        log_privately(self.name, error)
        return RoundFailedError(f"round {request.round} failed, see above")

    def _answered(self, request: RoundRequest, hold: Hold) -> Release:
        """Answer, with the site's folder locked until the reply is due."""
        with self._admitted(request, hold) as (work, folder):
            try:
                if work.ends:
                    return self._end(request, folder)
                return self._next(request, work, folder, hold)
            except Exception as error:
                if not hold.read:
                    raise
                clear_frames(error.__traceback__)  # as `work`: they hold patients, too
                raise self._failed(request, error) from None
            finally:
                del work  # what it has read: to give memory back takes as long as it is large
                if not self._simulation:  # whose sites are read for all their rounds at once
                    forget_patients()

    def note_refusal(self, reason: str) -> None:
        """Count what is about to leave in place of an answer, for the hospital's own figures.

        Whatever that meets, a want of memory too, is not to change what leaves.
        """
        if not self._simulation:
            with suppress(Exception):
                count_refusal(self._root / self.name, code_in(reason))

    def preflight(self, request: RoundRequest, hold: Hold | None = None) -> None:
        """Refuse now what `answer` would refuse before it reads a patient.

        Nothing is read of a patient, charged or kept, and no ledger is begun. It says what
        asking for the round would say for nothing, no more.

        Parameters
        ----------
        request : RoundRequest
            What is going to be asked.
        hold : Hold, optional
            As for `answer`: the folder stays locked until the reply is due.

        Raises
        ------
        DPFactError
            As `answer`.
        """
        with self._admitted(request, hold or Hold(0)) as (work, folder), ExitStack() as stack:
            if work.ends:
                self._paid(request, folder)
                return
            ledger = self._ledger(folder, stack)
            last = ledger.last(request.job) if ledger else None
            if ledger and last and _is_kept(request, ledger, last):
                return
            self._check_next(request, work, ledger, last, whole=True)
            with self._room(work, folder):
                pass

    def _check_next(
        self,
        request: RoundRequest,
        work: RoundWork,
        ledger: Ledger | None,
        last: LedgerRow | None,
        *,
        whole: bool,
    ) -> None:
        """Refuse a round, before a patient is read, that the site's record or budgets rule out.

        `ledger` is None where the site is about to begin one. `whole` asks for room for all the
        rounds that the run has left.
        """
        if last is not None:
            admission.check_follows(request, last)
            admission.check_terms(request, last)
        admission.check_budget(work, ledger.count() if ledger else (), self._settings)
        if not self._simulation:
            if ledger is None:
                admission.check_only_ledger(self._root, {self.name, *self._beside})
            answered = ledger.head().rows if ledger else 0
            admission.check_rounds(work, answered, self._settings, whole=whole)
            admission.check_memory(work)
            check_looks(self._root / self.name)
        read_key(self._root / self.name)
        store = self._store(request.job)
        admission.check_open(request, store)
        admission.check_selection(request, store)

    @contextmanager
    def _admitted(self, request: RoundRequest, hold: Hold) -> Iterator[tuple[RoundWork, Path]]:
        """The rule's work and the site's folder, locked until the reply is due.

        Everything before the data is touched decides by public facts and the site's own record.
        """
        admission.check_allowed(request, self._settings)
        admission.check_vocabulary(request, self._source)
        admission.check_folders(self._root, self.name, request.job, simulation=self._simulation)
        work, folder = self._work(request), self._root / self.name
        with disk_errors(folder), locked(folder) as waited:
            if waited:
                hold.begin_again()
            try:
                if not self._simulation:
                    check_not_set_back(request, self.name, folder)
                yield work, folder
            finally:
                del work  # the caller has let go of it, too
                hold.wait()

    def _next(self, request: RoundRequest, work: RoundWork, folder: Path, hold: Hold) -> Release:
        """Answer a round that asks for a release."""
        with ExitStack() as stack:
            ledger = self._ledger(folder, stack)
            last = ledger.last(request.job) if ledger else None
            if ledger and last and request.round <= last.round:
                sent = self._again(request, work, ledger, last, hold)
                if sent is not None:
                    return sent
            self._check_next(request, work, ledger, last, whole=last is None)
            hold.check_in_time()
            free = stack.enter_context(self._room(work, folder))
            if ledger is None:
                ledger = stack.enter_context(self._new_ledger(folder))
                # Again: without a lock somebody else may have begun it; from here on it is counted.
                admission.check_budget(work, ledger.count(), self._settings)
            store = self._begin(request, folder)
            stack.enter_context(self._look(folder))
            hold.read = True
            fingerprint = self._fingerprint
            admission.check_same_data(request, last, fingerprint, store)
            record = _JobRecord(request.job, ledger, store.of(fingerprint), last)
            return self._charged(request, work, record, fingerprint, free, hold)

    def _begin(self, request: RoundRequest, folder: Path) -> SiteStore:
        """Make the job's folder: from now on, a ledger that is gone was taken away.

        Nothing that is refused gets here: a server may ask for ever new jobs, and fill the disk.
        """
        data_key(folder)  # from now on there is one
        store = self._store(request.job)
        store.begin()
        if request.selection:
            store.note_selection(request.selection_digest)
        return store

    def _again(
        self,
        request: RoundRequest,
        work: RoundWork,
        ledger: Ledger,
        last: LedgerRow,
        hold: Hold,
    ) -> Release | None:
        """What was sent when this was asked before; in modes with noise no patient is read."""
        key = ReleaseKey(last.fingerprint, request.job, request.round, request.digest)
        record = _JobRecord(request.job, ledger, self._store(request.job, last.fingerprint), last)
        sent = record.answer(key, request)
        if sent is None and record.is_last(key) and _is_unprotected_start(request):
            hold.read = True
            again = self._compute(work, record).release  # it has left no state
            sent = again if ledger.has(key, request.terms, again) else None
        if sent is not None:
            _logger.info("round %d asked again: sending what was sent", request.round)
        return sent

    def _charged(
        self,
        request: RoundRequest,
        work: RoundWork,
        record: _JobRecord,
        fingerprint: str,
        free: Callable[[], None],
        hold: Hold,
    ) -> Release:
        """Compute, keep and charge, with the room for it, which `free` gives back, held until then.

        A round that is over by then is not charged: to the server it is one that failed. After the
        charge nothing fails any more: the release stands.
        """
        key = ReleaseKey(fingerprint, request.job, request.round, request.digest)
        outcome = self._compute(work, record)
        free()
        if outcome.state is not None:
            record.store.save(outcome.state)
        try:
            record.ledger.charge(key, request.terms, outcome.release, hold.check_in_time)
        except Exception:  # which may have come after the charge
            if not record.ledger.has(key, request.terms, outcome.release):
                raise
        hold.charged = outcome.release
        self._tidy(record.store, outcome)
        # A hospital wants it in its log, to compare the ledger with later; a simulation has none.
        level = logging.DEBUG if self._simulation else logging.INFO
        head, label = record.ledger.head(), outcome.release.label
        _logger.log(level, "round %d: %s; ledger: %s", request.round, label, head)
        return outcome.release

    def _compute(self, work: RoundWork, record: _JobRecord) -> RoundOutcome:
        """Run the round."""
        outcome = work.run(record)
        _check_announced(work, outcome.release)
        return outcome

    def _tidy(self, store: SiteStore, outcome: RoundOutcome) -> None:
        """Delete what no round needs, and note the site's own measures, if that works."""
        try:
            if outcome.state is not None:
                store.keep_only(outcome.state.round)
            if outcome.measures is not None:
                store.note(outcome.measures)
        except Exception as error:
            log_privately(self.name, error)

    def _room(self, work: RoundWork, folder: Path) -> AbstractContextManager[Callable[[], None]]:
        """Room on the disk for what the rest of the run charges, by public sizes.

        So a full disk refuses the round before a patient is looked at.
        """
        if self._simulation:
            return nullcontext(lambda: None)
        sizes = [len(vocabulary) for vocabulary in self._source.vocabularies]
        return held(folder, room_for(work.cost(), sizes, self._settings.max_rank))

    def _look(self, folder: Path) -> AbstractContextManager[None]:
        """A look at the patients, of which not many in a row may end without a charge."""
        return nullcontext() if self._simulation else counted_look(folder)

    def _end(self, request: RoundRequest, folder: Path) -> Release:
        """Answer a last round that asks for nothing: keep what it says, and look at no patient."""
        store = self._paid(request, folder)
        try:
            if request.selection:
                store.note_selection(request.selection_digest)
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

    def _paid(self, request: RoundRequest, folder: Path) -> SiteStore:
        """What is kept of a run, whose last round is refused where nothing was paid for it."""
        if not (folder / LEDGER).exists():
            raise MessageError(f"job {request.job!r}: this site has no ledger yet, nor answers")
        with Ledger(folder, create=False, durable=not self._simulation) as ledger:
            last = admission.check_paid(request, ledger)
        store = self._store(request.job, last.fingerprint)
        admission.check_selection(request, store)
        return store

    def _work(self, request: RoundRequest) -> RoundWork:
        """The rule's part of a round, once the request is known to fit this site."""
        rule = site_rules.find(request.rule_name)
        request = localised(request, self._settings)
        return rule(self._source, request, site=self.name, simulation=self._simulation)

    def _ledger(self, folder: Path, stack: ExitStack) -> Ledger | None:
        """The site's ledger, open until the stack is left; None where there never was one."""
        if not (folder / LEDGER).exists() and not has_jobs(folder):
            return None
        return stack.enter_context(Ledger(folder, create=False, durable=not self._simulation))

    def _new_ledger(self, folder: Path) -> Ledger:
        """A ledger where none ever was: it has a whole budget."""
        if not self._simulation:
            logging.getLogger(NEW_LEDGERS).warning(
                "site %s: begins a new ledger in %s, with a whole budget", self.name, self._root
            )
        return Ledger(folder, durable=not self._simulation)

    def _store(self, job: str, fingerprint: str = "") -> SiteStore:
        """What is kept of a job; without a fingerprint, for what is not of the patients."""
        return SiteStore(self._root, self.name, job, fingerprint, simulation=self._simulation)


@dataclass(frozen=True)
class _JobRecord:
    """What this site kept of a job, for its next round; `last` is what the ledger says of it."""

    job: str
    ledger: Ledger
    store: SiteStore
    last: LedgerRow | None

    def answer(self, key: ReleaseKey, request: RoundRequest) -> Release | None:
        """What was released for this very request before; no round is answered before its turn."""
        last = self.last
        if last is None or key.round > last.round:
            return None
        kept = self.ledger.answer(key)
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
        return release if self.ledger.has(key, terms, release) else None

    def state(self) -> SiteState | None:
        """The site's factors after the last round that was answered."""
        return self.store.load(self.last.round) if self.last else None

    def release(self, round_number: int) -> Release | None:
        """What was released in a round; None where it was not answered."""
        try:
            return self.ledger.release_of(self.job, round_number)
        except StateError:
            return None


def _is_kept(request: RoundRequest, ledger: Ledger, last: LedgerRow) -> bool:
    """Whether a round was answered before as it is asked."""
    key = ReleaseKey(last.fingerprint, request.job, request.round, request.digest)
    return last.request == key.request or ledger.answer(key) is not None


def _is_unprotected_start(request: RoundRequest) -> bool:
    return request.privacy.privacy == "none" and not request.anchors


def _check_announced(work: RoundWork, release: Release) -> None:
    """Hold a rule to its word: what costs more than its `cost` was never admitted."""
    announced = math.fsum(event.rho for event in work.cost())
    spent = math.fsum(event.rho for event in release.events)
    unprotected = bool(announced and release.arrays and not release.events)
    if unprotected or spent > announced * (1 + 1e-12):
        raise StateError("the rule releases more than it announced")
