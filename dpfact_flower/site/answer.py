"""`Site`, a hospital in a run: one request in, one release out. Flower stays outside.

The order of work is the privacy policy: admit the request, lock the site's folder, compute, charge,
reply. `admission.admitted` admits by public facts and the site's own record, and only then are the
patients read. The release is charged to the ledger, on disk, before it is handed out. A repeated
request gets the kept bytes, and no patient is read. Whatever fails after the patients were read is
one and the same error. Once a release is charged it goes out, whatever follows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from traceback import clear_frames

from dpfact_flower.data.site_data import SiteSource, forget_patients
from dpfact_flower.errors import MessageError, RoundFailedError, StateError, code_in
from dpfact_flower.privacy import (
    Release,
    ReleaseEvent,
    Share,
    release_nothing,
    release_unprotected,
)
from dpfact_flower.privacy.ledger import Ledger, LedgerRow, ReleaseKey, data_key, data_tag
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.admission import (
    Admitted,
    Hospital,
    admitted,
    check_budget,
    check_follows,
    check_same_data,
)
from dpfact_flower.site.config import check_choices, check_data_site
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.lockout import counting_attempt
from dpfact_flower.site.metrics import count_refusal
from dpfact_flower.site.reply_timing import ReplyDelay
from dpfact_flower.site.round import JobState, RoundOutcome, RoundWork
from dpfact_flower.site.secure import SecureRound, forget
from dpfact_flower.site.store import SiteState, SiteStore
from dpfact_flower.wire.protocol import RoundRequest

_logger = logging.getLogger(__name__)
NEW_LEDGERS = f"{__name__}.new_ledgers"
"""Logger of warnings that a ledger is begun: right before a site's first run, an alarm after it."""


@dataclass
class _Progress:
    """How far an answer has come, which decides what an error may become."""

    patients_read: bool = False
    charged: Release | None = None


class Site:
    """A hospital, as `dpfact_flower.server.coordinator.Coordinator` is a server.

    Parameters
    ----------
    source : SiteSource
        The site's data, or its file, whose patients are read when a round needs them.
    settings : SiteSettings
        `state_dir` and `allow_privacy` must be given.
    simulation, beside
        As for `dpfact_flower.site.admission.Hospital`.
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
            check_choices(settings)
            check_data_site(source.name, settings)
        self._hospital = Hospital(source, settings, simulation, beside)
        self.name = self._hospital.name

    def preflight(self, request: RoundRequest, delay: ReplyDelay | None = None) -> None:
        """Refuse now what `answer` would refuse before it reads a patient.

        Nothing is read of a patient, charged or kept, and no ledger is begun. Parameters and errors
        are those of `answer`.
        """
        with admitted(self._hospital, request, delay or ReplyDelay(0)):
            pass

    def answer(self, request: RoundRequest, delay: ReplyDelay | None = None) -> Release:
        """Compute, charge and keep the release for a request, or find it if it was made before.

        The delay of the reply knows the round's deadline, after which nothing is charged. What an
        error says is for the site alone, see `disclosure.log_privately`.
        """
        delay, progress = delay or ReplyDelay(0), _Progress()
        try:
            with admitted(self._hospital, request, delay) as admission:
                if admission.work.is_final:
                    return self._end(admission)
                if admission.secure is not None and admission.secure.question is None:
                    return admission.secure.keys()
                if admission.shares and admission.secure is None:
                    raise MessageError(
                        "request: this round needs a secure sum, and the request names none"
                    )
                if admission.repeated is not None:
                    return self._replay(admission, admission.repeated, progress)
                delay.check_in_time()
                with self._begun(admission) as ledger, self._reading_patients(request, progress):
                    return self._release(admission, ledger, delay, progress)
        except Exception as error:
            if not progress.patients_read:
                raise
            failed = self._failed(request, error)
            if progress.charged is not None:  # what follows the charge does not take it back
                return progress.charged
            raise failed from None

    def note_refusal(self, reason: str) -> None:
        """Count what is about to leave in place of an answer, for the hospital's own figures.

        Whatever that meets, a want of memory too, is not to change what leaves.
        """
        if not self._hospital.simulation:
            with suppress(Exception):
                count_refusal(self._hospital.folder, code_in(reason))

    def _end(self, admission: Admitted) -> Release:
        """Answer a last round that asks for nothing: keep what it says, and look at no patient."""
        request = admission.request
        store = self._hospital.store(
            request.job, admission.last.fingerprint if admission.last else ""
        )
        try:
            if request.selection:
                store.note_selection(request.selection_digest)
            store.keep_ending(*request.to_wire())
            forget(store.folder)
        except OSError as error:  # the run is over for the server, whatever is kept here
            _logger.error(
                "site %s: the end of job %s cannot be kept (%s)",
                self.name, request.job, error.strerror,
            )  # fmt: skip
        if not self._hospital.simulation:
            _logger.info(
                "job %s has ended; `dpfact site refit` fits this site's own model", request.job
            )
        return release_nothing()

    def _replay(self, admission: Admitted, row: LedgerRow, progress: _Progress) -> Release:
        """What was sent when this was asked before; in modes with noise no patient is read."""
        assert admission.ledger is not None
        if admission.secure is not None:
            return self._summed_again(admission, admission.secure, row)
        sent = admission.ledger.release_of(row.job, row.round)
        if sent is None:
            sent = self._made_again(admission, admission.ledger, row, progress)
        _logger.info("round %d was asked for again: sending the same reply", row.round)
        return sent

    def _summed_again(self, admission: Admitted, secure: SecureRound, row: LedgerRow) -> Release:
        """A further stage of a secure sum, with the vector that was charged."""
        assert admission.ledger is not None
        share = Share(secure.vector, row.events)
        if not admission.ledger.has(row.key, admission.request.terms, share):
            check_follows(admission.request, row)  # which refuses: the round is over
        return secure.opened() if secure.opening else secure.answer(lambda: share.values)

    def _made_again(
        self, admission: Admitted, ledger: Ledger, row: LedgerRow, progress: _Progress
    ) -> Release:
        """A release without noise: its bytes are not kept, but what they were made of."""
        request, store = admission.request, self._hospital.store(row.job, row.fingerprint)
        state, release = store.load(row.round), None
        if state is not None:
            release = release_unprotected(state.factors[1:])
        elif not request.anchors:  # a start leaves no state
            with self._reading_patients(request, progress):
                remade = compute(admission.work, _KeptJob(store, ledger, row)).release
                release = remade if isinstance(remade, Release) else None
        if release is None or not ledger.has(row.key, request.terms, release):
            check_follows(request, row)  # which refuses: the round is over
        assert release is not None
        return release

    @contextmanager
    def _begun(self, admission: Admitted) -> Iterator[Ledger]:
        """The ledger and the job's folder, begun where there are none, and an attempt counted.

        No request that is refused gets here: a server may ask for ever new jobs, and fill the disk.
        """
        hospital, request = self._hospital, admission.request
        known = admission.ledger
        with self._new_ledger(admission) if known is None else nullcontext(known) as ledger:
            data_key(hospital.folder)  # from now on there is one
            admission.store.begin()  # from now on, a ledger that is gone was taken away
            if request.selection:
                admission.store.note_selection(request.selection_digest)
            with nullcontext() if hospital.simulation else counting_attempt(hospital.folder):
                yield ledger

    def _new_ledger(self, admission: Admitted) -> Ledger:
        """A ledger where none ever was: it has a whole budget."""
        if not self._hospital.simulation:
            logging.getLogger(NEW_LEDGERS).warning(
                "site %s: new ledger in %s: no budget is spent yet",
                self.name, self._hospital.root,
            )  # fmt: skip
        ledger = self._hospital.ledger(create=True)
        # Again: without a lock another process may have begun it. From here on that is noticed.
        check_budget(admission.work, ledger.count(), self._hospital.settings)
        return ledger

    @contextmanager
    def _reading_patients(self, request: RoundRequest, progress: _Progress) -> Iterator[None]:
        """From here on whatever fails is one and the same error; in the end nobody is in memory.

        To give memory back takes as long as it is large, so it is done before the reply is due.
        """
        progress.patients_read = True
        try:
            yield
        except Exception as error:
            clear_frames(error.__traceback__)  # they hold patients, too
            raise self._failed(request, error) from None
        finally:
            if not self._hospital.simulation:  # whose sites are read for all their rounds at once
                forget_patients()

    def _release(
        self, admission: Admitted, ledger: Ledger, delay: ReplyDelay, progress: _Progress
    ) -> Release:
        """Compute, keep and charge.

        A round that is over by then is not charged: to the server it is one that failed. After the
        charge nothing fails any more: the release stands.
        """
        hospital, request = self._hospital, admission.request
        fingerprint = data_tag(hospital.folder, hospital.source.read().fingerprint)
        check_same_data(admission, fingerprint)
        store = hospital.store(request.job, fingerprint)
        outcome = compute(admission.work, _KeptJob(store, ledger, admission.last))
        admission.free_disk()
        if outcome.state is not None:
            store.save(outcome.state)
        release = outcome.release
        sent = _sent(release, admission.secure)
        key = ReleaseKey(fingerprint, request.job, request.round, request.digest)
        charge(ledger, key, request.terms, release, delay.check_in_time)
        progress.charged = sent
        self._clean_up(store, outcome)
        if not hospital.simulation:  # for the hospital, to compare the ledger with later
            _logger.info("round %d: %s; ledger: %s", request.round, release.label, ledger.head())
        return sent

    def _clean_up(self, store: SiteStore, outcome: RoundOutcome) -> None:
        """Delete what no round needs, and note the site's own measures, if that works."""
        try:
            if outcome.state is not None:
                store.keep_only(outcome.state.round)
            if outcome.measures is not None:
                store.note(outcome.measures)
        except Exception as error:
            log_privately(self.name, error)

    def _failed(self, request: RoundRequest, error: Exception) -> RoundFailedError:
        """What leaves once patients were read: which error it is may depend on them."""
        if isinstance(error, RoundFailedError):
            return error
        log_privately(self.name, error)
        return RoundFailedError(f"round {request.round} failed, see above")


@dataclass(frozen=True)
class _KeptJob:
    """What this site kept of a job, for its next round: a `JobState`."""

    store: SiteStore
    ledger: Ledger
    last: LedgerRow | None

    def state(self) -> SiteState | None:
        """The site's factors after the last round that was answered."""
        return self.store.load(self.last.round) if self.last else None

    def release(self, round_number: int) -> Release | None:
        """What was released in a round; None where it was not answered, or is not kept."""
        return self.ledger.release_of(self.last.job, round_number) if self.last else None


def _sent(release: Release | Share, secure: SecureRound | None) -> Release:
    """What leaves: a share only masked, and kept before."""
    if isinstance(release, Release):
        if any(event.shared for event in release.events):
            raise StateError(
                "the rule charges for a share of a secure sum, and releases it unmasked"
            )
        return release
    if secure is None:
        raise StateError("the rule makes a share of a secure sum, and the request has no sum")
    return secure.answer(lambda: release.values)


def compute(work: RoundWork, kept: JobState) -> RoundOutcome:
    """Run a round, and hold its rule to its word: what costs more than `cost` was not admitted."""
    outcome = work.run(kept)
    release = outcome.release
    announced, spent = _costs(work.cost()), _costs(release.events)
    unprotected = bool(announced[0] and release.arrays and not release.events)
    if unprotected or any(s > a * (1 + 1e-12) for s, a in zip(spent, announced, strict=True)):
        raise StateError("the rule releases more than it announced")
    return outcome


def _costs(events: Sequence[ReleaseEvent]) -> tuple[float, float]:
    """What releases cost in zCDP, and what they cost if all other sites collude."""
    return math.fsum(event.rho for event in events), math.fsum(event.alone.rho for event in events)


def charge(
    ledger: Ledger,
    key: ReleaseKey,
    terms: str,
    release: Release | Share,
    check_in_time: Callable[[], None],
) -> None:
    """Charge a release; an error that comes after the charge is none."""
    try:
        ledger.charge(key, terms, release, check_in_time)
    except Exception:
        if not ledger.has(key, terms, release):
            raise
