"""What a site takes part in: every check that comes before a patient is looked at.

They decide by public facts, by what the hospital chose, and by the site's own record of what it
released; so a refusal tells nothing about a patient. `check_same_data` must know which data it is,
and comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpfact_flower.data.site_data import SiteSource
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import MessageError, PrivacyRefusedError, SettingsError, StateError, shown
from dpfact_flower.machine.access import check_own, check_way
from dpfact_flower.machine.memory import memory_limit, memory_used
from dpfact_flower.privacy import account
from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow
from dpfact_flower.privacy.patient.outlook import BYTES_A_VALUE
from dpfact_flower.privacy.patient.statistics import sum_threads
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.round import RoundWork
from dpfact_flower.site.store import SiteStore
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.wire.protocol import RoundRequest

_BYTES_A_COPY = 8
_PATIENTS_SHARE = 0.25
"""Of the memory that the process may have."""


def check_choices(settings: SiteSettings) -> None:
    """Refuse settings that lack what a hospital must choose for itself: there is no default.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
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


def check_data_site(name: str, settings: SiteSettings) -> None:
    """Refuse a data file with another site's name: its patients would be charged to this ledger.

    Raises
    ------
    SettingsError
        With both names, and the way out.
    """
    wanted = settings.data_site or settings.site
    if wanted and name != wanted:
        raise SettingsError(
            f"data-path: the file is that of site {name!r}, and site is {settings.site!r}; name "
            f"the right file, or set data-site = {name!r} if these are this site's patients"
        )


def check_folders(root: Path, site: str, job: str, *, simulation: bool) -> None:
    """Refuse a state-dir, or a folder in it, that others could have made, change or move away.

    Raises
    ------
    StateError
        Naming the folder and the way out.
    """
    own = root / site
    for path in (root, own, own / LEDGER, own / f"{LEDGER}-journal", own / job):
        check_own(path)
    if not simulation:
        check_way(root)


def check_allowed(request: RoundRequest, settings: SiteSettings) -> None:
    """Refuse what the hospital does not take part in, or not at that size.

    Raises
    ------
    PrivacyRefusedError
        If the mode or the rule is not among those that the hospital allows.
    MessageError
        If rank or tau exceed its limits, or the job's name is not free.
    SettingsError
        If this site has no such solver.
    """
    for name, asked, allowed in (
        ("privacy", request.privacy.privacy, settings.allow_privacy),
        ("rules", request.rule_name, settings.allow_rules),
    ):
        if asked not in allowed.split(","):
            raise PrivacyRefusedError(
                f"the run asks for {name} {shown(asked)}; this site's allow-{name} is {allowed!r}"
            )
    for name, size, most in (
        ("rank", request.solver.rank, settings.max_rank),
        ("tau", request.solver.tau, settings.max_tau),
    ):
        if size > most:
            raise MessageError(f"{name}: the run asks for {size}, this site's limit is {most}")
    solvers.find(request.solver.solver)  # one that this site has code for
    # A folder in the place of SQLite's journal would shut the ledger for good.
    if request.job.lower().startswith(LEDGER):
        raise MessageError(f"job: {request.job!r} is a name of the ledger's own files")


def check_vocabulary(request: RoundRequest, source: SiteSource) -> None:
    """Refuse a run whose codes are numbered otherwise than this site's.

    Raises
    ------
    MessageError
        If their digests differ.
    """
    if request.vocabulary not in ("", joint_digest(source.vocabularies)):
        raise MessageError(
            "the run's vocabularies are not this site's: their digests differ; "
            "prepare the site's data with the code lists of the run"
        )


def check_follows(request: RoundRequest, last: LedgerRow) -> None:
    """Refuse a round that is over, unless it is asked as it was asked then.

    Raises
    ------
    MessageError
        If the round is over.
    """
    if request.round <= last.round:
        raise MessageError(
            f"round {request.round} of job {request.job!r} is stale: this site has finished "
            f"round {last.round}"
        )


def check_open(request: RoundRequest, store: SiteStore) -> None:
    """Refuse a job that was found to be begun with other data.

    Raises
    ------
    StateError
        If it was.
    """
    if store.closed:
        raise StateError(
            f"job {request.job!r} was begun with other data; now that it has changed, start a "
            f"new job ({store.folder})"
        )


def check_same_data(
    request: RoundRequest, last: LedgerRow | None, fingerprint: str, store: SiteStore
) -> None:
    """Refuse data that changes in the middle of a job, and note it: it is not looked for again.

    Raises
    ------
    StateError
        If the data has changed.
    """
    if last is not None and last.fingerprint != fingerprint:
        store.close()
        raise StateError(
            f"job {request.job!r} was begun with other data; now that it has changed, start a "
            "new job"
        )


def check_terms(request: RoundRequest, last: LedgerRow) -> None:
    """Refuse settings that change in the middle of a job.

    Raises
    ------
    MessageError
        If they have changed.
    """
    if request.terms != last.terms:
        raise MessageError(
            f"the settings of job {request.job!r} have changed since round "
            f"{last.round}; a change needs a new job"
        )


def check_selection(request: RoundRequest, store: SiteStore) -> None:
    """Refuse a selection of codes that changes within a job.

    Raises
    ------
    MessageError
        If it is another one than before.
    """
    if request.selection and not store.same_selection(request.selection_digest):
        raise MessageError(
            f"the codes that job {request.job!r} keeps have changed; a change needs a new job"
        )


def check_paid(request: RoundRequest, ledger: Ledger) -> LedgerRow:
    """Refuse the end of a run that this site has released nothing in.

    What costs nothing is bounded so by what was paid for.

    Raises
    ------
    MessageError
        If nothing was charged in the job, or its settings have changed.
    """
    last = ledger.last(request.job)
    if last is not None:
        check_terms(request, last)
    if last is None or not ledger.events(request.job):
        raise MessageError(
            f"job {request.job!r}: its last round, and this site has answered none that is charged"
        )
    return last


def check_budget(work: RoundWork, rows: Sequence[LedgerRow], settings: SiteSettings) -> None:
    """Count what is asked with all that the site has released, in whatever job.

    Raises
    ------
    PrivacyRefusedError
        If it exceeds the hospital's cap, or cannot be added up with what was released.
    """
    events = work.cost()
    if not events:
        return
    if any(row.unprotected for row in rows):
        raise PrivacyRefusedError(
            "the ledger holds releases without noise: no epsilon covers this site's patients; "
            "other patients need another state-dir"
        )
    total = [*(event for row in rows for event in row.events), *events]
    relations = {(event.unit, event.neighbours) for event in total}
    if len(relations) > 1:
        raise PrivacyRefusedError(
            "the ledger holds releases of another unit of privacy, which do not add up with "
            f"what is asked: {' and '.join(sorted(map('/'.join, relations)))}"
        )
    limit = settings.max_epsilon
    if not limit:
        return
    guarantee = account(total, settings.budget_delta)
    if guarantee.headline.epsilon > limit:
        raise PrivacyRefusedError(
            f"max-epsilon is {limit:g}; with {work.reach} the site would stand at "
            f"{guarantee.headline}"
        )


def check_rounds(
    work: RoundWork, answered: int, settings: SiteSettings, *, whole: bool = False
) -> None:
    """Refuse a further look at the patients where a server has had as many as the hospital wants.

    A budget alone does not bound them: a round with much noise costs next to nothing, and how long
    it takes can be seen all the same.

    Parameters
    ----------
    work : RoundWork
    answered : int
        Rounds that were answered, in whatever job.
    settings : SiteSettings
    whole : bool
        Whether all that the run has left must fit, and not this round alone: as long as nobody has
        paid for it.

    Raises
    ------
    PrivacyRefusedError
        If it does not.
    """
    left = settings.max_rounds - answered
    needed = work.charged_rounds if whole else 1
    if work.cost() and left < needed:
        raise PrivacyRefusedError(
            f"max-rounds is {settings.max_rounds}, this site has answered {answered} rounds, over "
            f"all jobs, and {'this run needs' if whole else 'it is asked for'} {needed} more; "
            "whoever raises it lets a server time its patients more often"
        )


def check_memory(work: RoundWork) -> None:
    """Refuse a round that leaves too little of this machine's memory for the patients.

    Or the system would end the process once the patients have been read, and a server could find
    out how much they need: by the size of the release, or by what it sends beside its question.
    Both are public, and counted; the patients' own memory is not, and has a share that nothing else
    takes. In a deployment nobody was read in this process before: it ends with its message.

    Raises
    ------
    MessageError
        If what the process has taken so far, and the largest release of the rest of the run, come
        to more than the rest.
    """
    largest = max((event.count for event in work.cost()), default=0)
    sums = max((_bytes_for(event.count) for event in work.cost()), default=0)
    needed, limit = memory_used() + sums, memory_limit()
    if limit is not None and needed > limit * (1 - _PATIENTS_SHARE):
        raise MessageError(
            f"codes: a release of {largest:,} values needs {needed / 2**30:.1f} GiB of memory with "
            f"the message and the program; this process may have {limit / 2**30:.1f}, of which "
            f"{_PATIENTS_SHARE:.0%} are for the patients; a run of fewer codes needs less"
        )


def _bytes_for(values: int) -> int:
    """Memory for a release: all threads but one have a copy of the sum more."""
    return values * (BYTES_A_VALUE + _BYTES_A_COPY * (sum_threads(values) - 1))


def check_only_ledger(root: Path, known: set[str]) -> None:
    """Refuse to begin a ledger beside one that is unknown: its patients may be the same.

    Raises
    ------
    StateError
        If the `state-dir` holds the ledger of another name.
    """
    others = sorted({path.parent.name for path in root.glob(f"*/{LEDGER}")} - known)
    if others:
        raise StateError(
            f"{root}: holds the ledger of {', '.join(others)}, which is not this site's name; if "
            "these are the same patients, set site to that name in the node config; other patients "
            "need a state-dir of their own"
        )
