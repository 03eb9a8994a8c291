"""All checks that a request must pass before the site reads patients' data.

The checks use only public facts, the hospital's settings and the site's record of its releases. A
refusal therefore reveals nothing about a patient. `admitted` runs the checks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from dpfact_flower.data.site_data import SiteSource
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import MessageError, PrivacyRefusedError, SettingsError, StateError, shown
from dpfact_flower.machine.files import check_own, check_parents, disk_errors, locked
from dpfact_flower.privacy import ReleaseEvent, account
from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow, read_data_key
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.disclosure import ReplyDelay
from dpfact_flower.site.hospital import Hospital
from dpfact_flower.site.lockout import check_attempts, check_not_rolled_back
from dpfact_flower.site.resources import bytes_to_reserve, check_memory, reserve
from dpfact_flower.site.round import RoundWork
from dpfact_flower.site.rules import site_rules
from dpfact_flower.site.secure import SecureRound, secure_round
from dpfact_flower.site.store import has_jobs
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.wire.protocol import RoundRequest

OTHER_DATA = "job {job!r} was closed, or the data or .ledger-key has changed; start a new job"


@dataclass(frozen=True)
class Admitted:
    """A request that has passed every check.

    `announced` contains the privacy costs of this round and all later rounds. `ledger` is None if
    the site has no ledger yet. `rows` contains all of the ledger's rows, and `last` is the latest
    row of the request's job. `repeated` is the row of an earlier answer to this request, if the
    answer can be sent again. `secure` is None in a preflight or a round without a secure sum. Call
    `free_disk` to release the reserved disk space just before the site writes its files.
    """

    request: RoundRequest
    work: RoundWork
    announced: Sequence[ReleaseEvent]
    ledger: Ledger | None
    rows: Sequence[LedgerRow]
    last: LedgerRow | None
    repeated: LedgerRow | None
    secure: SecureRound | None
    free_disk: Callable[[], None] = lambda: None


@contextmanager
def admitted(hospital: Hospital, request: RoundRequest, delay: ReplyDelay) -> Iterator[Admitted]:
    """Admit or refuse a request, and keep the site's folder locked until the reply is due.

    If a request waits for the lock, the delay of its reply starts after the wait. The time of a
    reply therefore does not reveal when the reply to an earlier request was ready.
    """
    work = _fitting_work(hospital, request)
    with disk_errors(hospital.folder), locked(hospital.folder) as waited, ExitStack() as stack:
        if waited:
            delay.restart()
        stack.callback(delay.wait)
        # A ledger that once existed must not be replaced by a new one.
        has_ledger = (hospital.folder / LEDGER).exists() or has_jobs(hospital.folder)
        ledger = stack.enter_context(hospital.ledger()) if has_ledger else None
        rows = ledger.rows() if ledger else ()
        of_job = [row for row in rows if row.job == request.job]
        last = of_job[-1] if of_job else None
        repeated = _repeated(request, of_job)
        secure = None
        if work.planned and work.planned.sharing:
            secure = secure_round(hospital, request, work.planned, answered=repeated is not None)
        elif request.secure is not None:
            raise MessageError("request: this round has no secure sum")
        events = work.cost()
        admission = Admitted(request, work, events, ledger, rows, last, repeated, secure)
        if not hospital.simulation:
            check_not_rolled_back(request, hospital.name, last, hospital.folder)
        if work.is_final:
            check_paid(request, of_job)
            check_follows(request, last)
        elif repeated is None:
            _check_new_round(hospital, admission)
            if not hospital.simulation:
                size = bytes_to_reserve(events, hospital.source.vocabularies, hospital.settings)
                admission = replace(admission, free_disk=reserve(stack, hospital.folder, size))
        yield admission


def _fitting_work(hospital: Hospital, request: RoundRequest) -> RoundWork:
    """Check a request, using only public facts, and return the request's `RoundWork`."""
    try:
        check_allowed(request, hospital.settings)
        check_vocabulary(request, hospital.source)
        check_folders(hospital, request.job)
        rule, vocabularies = site_rules.find(request.rule), hospital.source.vocabularies
        return rule(vocabularies, request, site=hospital.name, simulation=hospital.simulation)
    except SettingsError as error:  # in the run's settings: the site's were checked before
        raise MessageError(str(error)) from None


def _repeated(request: RoundRequest, of_job: Sequence[LedgerRow]) -> LedgerRow | None:
    """Return the row of an earlier answer to this request, or None if none can be sent again."""
    for row in of_job:
        if (row.round, row.request) == (request.round, request.digest):
            # A release whose bytes are not kept can be rebuilt only until the job's next round.
            return row if row.payload_kept or row is of_job[-1] else None
    return None


def _check_new_round(hospital: Hospital, admission: Admitted) -> None:
    """Refuse a round that conflicts with the site's records, a budget or another limit."""
    check_follows(admission.request, admission.last)
    check_budget(admission.announced, admission.rows, hospital.settings)
    if not hospital.simulation:
        if admission.ledger is None:
            check_only_ledger(hospital)
        check_rounds(admission, hospital.settings)
        check_memory(admission.announced)
        check_attempts(hospital.folder)
    read_data_key(hospital.folder)
    if hospital.store(admission.request.job).is_closed:
        raise StateError(OTHER_DATA.format(job=admission.request.job))


def check_folders(hospital: Hospital, job: str) -> None:
    """Refuse a state-dir if other users could create, change or move the folder or its contents."""
    folder = hospital.folder
    names = (LEDGER, f"{LEDGER}-journal", job)
    for path in (hospital.root, folder, *(folder / name for name in names)):
        check_own(path)
    if not hospital.simulation:
        check_parents(hospital.root)


def check_allowed(request: RoundRequest, settings: SiteSettings) -> None:
    """Refuse a request for a mode, rule or size that the hospital's settings do not allow."""
    for name, value, allowed in (
        ("privacy", request.privacy.privacy, settings.allow_privacy),
        ("rules", request.rule, settings.allow_rules),
    ):
        if value not in allowed.split(","):
            raise PrivacyRefusedError(
                f"the run asks for {name} {shown(value)}; this site's allow-{name} is {allowed!r}"
            )
    for name, size, most in (
        ("rank", request.solver.rank, settings.max_rank),
        ("tau", request.solver.tau, settings.max_tau),
    ):
        if size > most:
            raise MessageError(f"{name}: the run asks for {size}, this site's limit is {most}")
    solver = request.solver
    solvers.find(solver.solver).check(solver)  # fails if the site lacks the solver's code
    # A job folder with the same name as SQLite's journal would block the ledger for good.
    if request.job.lower().startswith(LEDGER):
        raise MessageError(f"job: {request.job!r} is reserved for the ledger's files")


def check_vocabulary(request: RoundRequest, source: SiteSource) -> None:
    """Refuse a run whose code lists differ from this site's code lists."""
    if request.vocabulary not in ("", joint_digest(source.vocabularies)):
        raise MessageError(
            "the run's vocabularies are not this site's (their digests differ): prepare the data "
            "with the code lists of the run"
        )


def check_follows(request: RoundRequest, last: LedgerRow | None) -> None:
    """Refuse a round that this site has already finished, or a job whose settings have changed."""
    if last is None:
        return
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


def check_paid(request: RoundRequest, of_job: Sequence[LedgerRow]) -> None:
    """Refuse a run's last round, which is free, if this site has charged no round of the run."""
    if not any(row.events for row in of_job):
        raise MessageError(f"job {request.job!r}: this site has answered no charged round")


def check_budget(
    events: Sequence[ReleaseEvent], rows: Sequence[LedgerRow], settings: SiteSettings
) -> None:
    """Refuse a request if its cost plus the cost of all earlier releases exceeds a budget."""
    if not events:
        return
    if any(row.unprotected for row in rows):
        raise PrivacyRefusedError(
            "the ledger holds releases without noise, so no epsilon covers this site's patients; "
            "use another state-dir for other patients"
        )
    total = [*(event for row in rows for event in row.events), *events]
    relations = {(event.unit, event.neighbours) for event in total}
    if len(relations) > 1:
        raise PrivacyRefusedError(
            "the ledger holds releases of another unit of privacy, which cannot be added to "
            f"this request: {' and '.join(sorted(map('/'.join, relations)))}"
        )
    spent = account(total, settings.budget_delta)
    for key, limit, figure in (
        ("max-epsilon", settings.max_epsilon, spent.headline),
        ("max-epsilon-alone", settings.max_epsilon_alone, spent.alone or spent.headline),
    ):
        if limit and figure.epsilon > limit:
            raise PrivacyRefusedError(
                f"{key} is {limit:g}; with the planned releases the site would reach {figure}"
            )


def check_rounds(admission: Admitted, settings: SiteSettings) -> None:
    """Refuse a round that costs privacy if it would exceed the hospital's limit on rounds.

    If the budget were the only limit, a server could ask for many very noisy rounds, and measure
    how long each round takes. A new run is refused unless the limit allows all of its rounds.
    """
    answered, begun = len(admission.rows), admission.last is not None
    needed = 1 if begun else admission.work.charged_rounds
    if admission.announced and settings.max_rounds - answered < needed:
        raise PrivacyRefusedError(
            f"max-rounds is {settings.max_rounds}; this site has answered {answered} rounds in "
            f"all jobs, and {'the server asks for' if begun else 'this run needs'} {needed} more; "
            "a higher max-rounds lets a server time this site's answers more often"
        )


def check_only_ledger(hospital: Hospital) -> None:
    """Refuse a new ledger beside a misplaced ledger, or that of a site not in `hospital.beside`."""
    if (misplaced := hospital.root / LEDGER).exists():
        raise StateError(
            f"{misplaced}: if {hospital.root} is a site's own folder, set state-dir to the folder "
            f"above it; otherwise, move the ledger and all files beside it into {hospital.folder}"
        )
    expected = {hospital.name, *hospital.beside}
    unknown = sorted({path.parent.name for path in hospital.root.glob(f"*/{LEDGER}")} - expected)
    if unknown:
        raise StateError(
            f"{hospital.root}: holds the ledger of {', '.join(unknown)}, which is not this site's "
            "name; for the same patients, set site to that name; for others, use another state-dir"
        )
