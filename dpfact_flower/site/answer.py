"""Define `Site`, which answers each of the server's requests with one release.

A site answers a request in four steps: admit the request, compute the release, charge the privacy
cost, and reply. The site reads no patient's data before admitting the request
(`admission.admitted`). The site writes the charge to disk before sending the release, and sends the
release even if an error follows the charge. After the site has read patients' data, every failure
raises the same error, so that the error reveals nothing about the data.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from traceback import clear_frames

from dpfact_flower.data.site_data import SiteData, forget_patients
from dpfact_flower.errors import MessageError, RoundFailedError, StateError
from dpfact_flower.privacy import Release, ReleaseEvent, Share, release_nothing, release_unprotected
from dpfact_flower.privacy.ledger import Head, Ledger, LedgerRow, ReleaseKey, data_key, keyed_hash
from dpfact_flower.privacy.release import claim_of
from dpfact_flower.site.admission import OTHER_DATA, Admitted, admitted
from dpfact_flower.site.disclosure import ReplyDelay, log_privately
from dpfact_flower.site.hospital import Hospital, check_choices, check_data_site, totals_of
from dpfact_flower.site.lockout import counting_attempt
from dpfact_flower.site.round import JobState, RoundOutcome
from dpfact_flower.site.secure import SecureRound
from dpfact_flower.site.store import SiteStore
from dpfact_flower.wire.protocol import RoundRequest

_logger = logging.getLogger(__name__)


class _Progress:
    """The steps completed for a request, which determine what the site sends after an error."""

    patients_read: bool = False
    charged: Release | None = None


class Site:
    """A hospital that answers the server's requests."""

    def __init__(self, hospital: Hospital) -> None:
        if not hospital.simulation:
            check_choices(hospital.settings)
            check_data_site(hospital.source.name, hospital.settings)
        self._hospital, self.name = hospital, hospital.name

    def preflight(self, request: RoundRequest, delay: ReplyDelay | None = None) -> None:
        """Raise an error if `answer` would not admit the request. Read no patient's data."""
        with admitted(self._hospital, request, delay or ReplyDelay(0)):
            pass

    def answer(self, request: RoundRequest, delay: ReplyDelay | None = None) -> Release:
        """Compute and charge a release, or return the earlier release if the request is repeated.

        After the deadline that `delay` sets, the site charges nothing. The text of an error must
        not leave the site (see `disclosure.log_privately`).
        """
        delay, progress = delay or ReplyDelay(0), _Progress()
        try:
            with admitted(self._hospital, request, delay) as admission:
                if admission.work.is_final:
                    return self._end(admission)
                if admission.secure is not None and admission.secure.allowed is None:
                    return admission.secure.keys()
                planned = admission.work.planned
                if planned and planned.sharing and admission.secure is None:
                    raise MessageError("request: this round needs a secure sum")
                if admission.repeated is not None:
                    return self._replay(admission, admission.repeated, progress)
                delay.check_in_time()
                with self._begin(admission) as ledger, self._reading_patients(request, progress):
                    return self._release(admission, ledger, delay, progress)
        except Exception as error:
            if not progress.patients_read:
                raise
            failed = self._failed(request, error)
            if progress.charged is None:
                raise failed from None
            return progress.charged  # a later error does not undo the charge

    def _end(self, admission: Admitted) -> Release:
        """Store the last round's request, without reading patients' data or releasing values."""
        request, last = admission.request, admission.last
        assert last is not None
        store = self._hospital.store(request.job, last.fingerprint)
        try:
            store.forget_secrets()  # even if the disk is full
            store.keep_ending(*replace(request, answered={}).to_wire())  # `answered` may be large
        except OSError as error:  # the server ends the run in any case
            _logger.error("the last request of job %s cannot be kept (%s)", request.job, error)
        return release_nothing()

    def _replay(self, admission: Admitted, row: LedgerRow, progress: _Progress) -> Release:
        """Return the release that was sent before. Patients' data is read only in mode "none"."""
        ledger, secure = admission.ledger, admission.secure
        assert ledger is not None
        if secure is not None:  # a later stage or attempt: the vector was charged before
            _check_charged(ledger, row, Share(secure.vector, row.events))
            is_opening = secure.stage.stage == "open"
            return secure.opened() if is_opening else secure.answer(lambda: secure.vector)
        sent = ledger.release_of(row.job, row.round)
        if sent is None:
            sent = self._rebuild(admission, ledger, row, progress)
        _logger.info("round %d was asked for again: sending the same reply", row.round)
        return sent

    def _rebuild(
        self, admission: Admitted, ledger: Ledger, row: LedgerRow, progress: _Progress
    ) -> Release:
        """Rebuild a release in mode "none", whose values the ledger does not store."""
        request, store = admission.request, self._hospital.store(row.job, row.fingerprint)
        state = store.load(row.round)
        if state is not None:
            release = release_unprotected(state.factors[1:])
        elif request.anchors:
            raise StateError(f"the state of round {row.round} is missing; start a new job")
        else:  # rounds of a start leave no state
            with self._reading_patients(request, progress):
                outcome = compute(admission, self._hospital.source.read(), JobState())
                release = _sent(outcome.release, None)
        _check_charged(ledger, row, release)
        return release

    @contextmanager
    def _begin(self, admission: Admitted) -> Iterator[Ledger]:
        """Open or create the ledger and job folder, and count an attempt to read patients' data.

        Refused requests create no folder, so that a server cannot fill the disk with folders.
        """
        hospital = self._hospital
        with ExitStack() as stack:
            ledger = admission.ledger
            if ledger is None:
                if not hospital.simulation:
                    text = "site %s: new ledger in %s: no budget is spent yet"
                    _logger.warning(text, self.name, hospital.root)
                ledger = stack.enter_context(hospital.ledger(create=True))
            data_key(hospital.folder)  # creates the key if it is missing
            hospital.store(admission.request.job).create()  # a missing ledger is now an error
            if not hospital.simulation:
                stack.enter_context(counting_attempt(hospital.folder))
            yield ledger

    @contextmanager
    def _reading_patients(self, request: RoundRequest, progress: _Progress) -> Iterator[None]:
        """Replace any error with one generic error, and clear patients' data from memory."""
        progress.patients_read = True
        try:
            yield
        except Exception as error:
            clear_frames(error.__traceback__)  # the frames also refer to patients' data
            raise self._failed(request, error) from None
        finally:
            if not self._hospital.simulation:  # a simulation keeps its sites in memory
                forget_patients()  # within the reply delay, which hides how long this takes

    def _release(
        self, admission: Admitted, ledger: Ledger, delay: ReplyDelay, progress: _Progress
    ) -> Release:
        """Compute a release, store the site's state, and charge the release before the deadline."""
        hospital, request = self._hospital, admission.request
        data = hospital.source.read()
        fingerprint = keyed_hash(hospital.folder, request.job, data.fingerprint)
        store, last, kept = hospital.store(request.job, fingerprint), admission.last, JobState()
        if last is not None:
            if last.fingerprint != fingerprint:
                with suppress(OSError):
                    store.close()
                raise StateError(OTHER_DATA.format(job=request.job))
            kept = JobState(store.load(last.round), partial(ledger.release_of, last.job))
        has_noise = request.privacy.privacy != "none" or admission.announced
        outcome = compute(admission, data, kept)
        admission.free_disk()
        if outcome.state is not None:
            store.save(outcome.state)
        release = outcome.release
        sizes = [array.size for array in release.arrays]
        if has_noise and sizes != [event.count for event in release.events]:
            raise StateError("the rule releases values without noise")
        sent = _sent(release, admission.secure)
        key = ReleaseKey(fingerprint, request.job, request.round, request.digest)
        # If locks do not work, another process may have made a charge since the budget was checked.
        counted = Head.of(admission.rows)
        head = ledger.charge(key, request.terms, release, counted, delay.check_in_time)
        progress.charged = sent
        self._clean_up(store, outcome)
        if not hospital.simulation:  # for a later comparison with the ledger
            claim = claim_of(release.events) if release.arrays else "nothing was released"
            totals = totals_of([*admission.rows, release], hospital.settings.budget_delta)
            text = "job %s, round %d: %s; epsilon_spent %.6f, epsilon_alone_spent %.6f; ledger: %s"
            _logger.info(text, request.job, request.round, claim, *totals, head)
        return sent

    def _clean_up(self, store: SiteStore, outcome: RoundOutcome) -> None:
        """Delete old state and store the round's measurements. Log errors without raising them."""
        try:
            if outcome.state is not None:
                store.keep_only(outcome.state.round)
            if outcome.measures is not None:
                store.note(outcome.measures)
        except Exception as error:
            log_privately(self.name, error)

    def _failed(self, request: RoundRequest, error: Exception) -> RoundFailedError:
        """Log an error, and return a generic error that is safe to send to the server."""
        if isinstance(error, RoundFailedError):
            return error
        log_privately(self.name, error)
        return RoundFailedError(f"round {request.round} failed; the line above has the cause")


def _sent(release: Release | Share, secure: SecureRound | None) -> Release:
    """Return the release to send. For a secure sum, store the site's share, and then mask it."""
    if isinstance(release, Release):
        if any(event.shared for event in release.events):
            raise StateError("the rule releases a share of a secure sum unmasked")
        return release
    if secure is None:
        raise StateError("the rule makes a share of a secure sum, and the request has no sum")
    return secure.answer(lambda: release.values)


def _check_charged(ledger: Ledger, row: LedgerRow, release: Release | Share) -> None:
    """Raise an error if a release differs from the release that was charged."""
    if not ledger.holds(row, release):
        raise StateError(f"round {row.round} of job {row.job!r} was released with other values")


def compute(admission: Admitted, data: SiteData, kept: JobState) -> RoundOutcome:
    """Run a round. Refuse a release that costs more than was announced for all remaining rounds."""
    announced, outcome = admission.announced, admission.work.run(data, kept)
    spent = outcome.release.events
    units, known = ({(e.unit, e.neighbours) for e in events} for events in (spent, announced))
    costs = zip(_costs(spent), _costs(announced), strict=True)
    if any(cost > limit * (1 + 1e-12) for cost, limit in costs) or not units <= known:
        raise StateError("the rule releases more than it announced")
    return outcome


def _costs(events: Sequence[ReleaseEvent]) -> tuple[float, float]:
    """Return the releases' zCDP cost, and the cost if all other sites collude with the server."""
    return math.fsum(event.rho for event in events), math.fsum(event.alone.rho for event in events)
