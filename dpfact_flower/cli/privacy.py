"""Define the commands `dpfact plan`, `ledger` and `audit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import Option

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import console, echo_json, progress, say
from dpfact_flower.errors import SettingsError, StateError, plural
from dpfact_flower.settings import PrivacySettings, SolverSettings, refuse_unknown

if TYPE_CHECKING:
    from dpfact_flower.estimation.outlook import Needs, Outlook
    from dpfact_flower.privacy import Guarantee, ReleaseEvent
    from dpfact_flower.privacy.ledger import LedgerRow
    from dpfact_flower.privacy.patient.plan import PatientPlan

ledger_app = typer.Typer(
    name="ledger",
    help="Show, check, copy or restore a site's record of releases, which stays at the site.",
    no_args_is_help=True,
)
_EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
_RANKS = (5, 10, 20, 50)
_COLOURS = {"good": "green", "weak": "yellow", "hopeless": "red", "unknown": "default"}

SiteName = Annotated[str, Option(help="Name of the site, if the state-dir has several sites.")]
Noted = Annotated[str, Option(help="A head (ROWS:HASH) from the site's log, to find deleted rows.")]


def plan(
    sizes: Annotated[str, Option(help="Number of codes in each feature mode, e.g. 202x316.")],
    patients: Annotated[int, Option(help="Public estimate of the total; 0: unknown.", min=0)] = 0,
    sites: Annotated[int, Option(help="Number of sites; 0: unknown.", min=0)] = 0,
    rank: Annotated[int, Option(help="Number of phenotypes.", min=1)] = SolverSettings().rank,
    epsilon: Annotated[float, Option(help="Epsilon of the whole run, for each patient.")] = 4.0,
    delta: Annotated[float, Option(help="Delta of the whole run.")] = 1e-5,
    settings: opt.Set = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show the releases, noise, cost and expected quality of a planned run in patient mode.

    Planning reads no data and spends no budget. A run with the same settings uses the same plan.
    """
    from dpfact_flower.estimation.outlook import needs_of, outlook_of
    from dpfact_flower.privacy.guarantee import delta_warning
    from dpfact_flower.privacy.patient.plan import plan_patient

    facts = {"epsilon": epsilon, "delta": delta, "patients": patients}
    given = {"privacy": "patient", **opt.parse_assignments(settings, {*facts, "rank", "sites"})}
    refuse_unknown(given, PrivacySettings)
    if given["privacy"] != "patient":
        raise SettingsError(f"privacy: plans are for 'patient'; got {given['privacy']!r}")
    chosen = PrivacySettings.from_config({**given, **facts})
    rank = SolverSettings(rank=rank).rank  # refuses whatever a run would refuse
    codes = opt.read_sizes("--sizes", sizes)
    planned = partial(plan_patient, sizes=codes, sites=sites)
    made = planned(chosen, rank=rank)
    modes = [f"mode {mode}" for mode in range(1, len(codes) + 1)]
    if as_json:
        echo_json(_as_dict(made, modes, outlook_of(made), needs_of(made)))
        return
    console.print(_releases(made, modes))
    say(f"{made.rounds} Flower rounds; the last one releases nothing")
    guarantee = made.guarantee()
    for figure in (*guarantee.figures, *filter(None, [guarantee.alone])):
        say(f"  {figure}")
    if warning := delta_warning(delta, patients // max(sites, 1)):
        say(f"warning: {warning}")
    outlook = outlook_of(made)
    verdict = outlook.verdict
    if verdict != "unknown":
        with suppress(SettingsError):  # other values of epsilon or rank may be impossible
            console.print(_prospects(planned, chosen, rank))
        console.print(_levers(outlook))
    sentence = f"[{_COLOURS[verdict]}]{verdict}[/]: {escape(outlook.sentence)}"
    console.print(sentence, soft_wrap=True)
    say(_resources(needs_of(made)))
    if verdict != "unknown":
        other = replace(chosen, secure_sums=not chosen.secure_sums)
        with suppress(SettingsError):  # `other`, which nobody asked for, may be impossible
            say(_compared(made, planned(other, rank=rank)))


def _compared(made: PatientPlan, other: PatientPlan) -> str:
    """Describe how secure sums change a plan's expected quality and privacy guarantee."""
    from dpfact_flower.estimation.outlook import outlook_of
    from dpfact_flower.privacy import rounded_up

    shared, separate = (made, other) if made.facts.sharing else (other, made)
    alone, sharing = shared.guarantee().alone, shared.facts.sharing
    assert alone is not None
    assert sharing is not None
    before, after = outlook_of(separate), outlook_of(shared)
    return (
        f"secure sums (secure-sums = true): signal {_short(after.signal)} instead of "
        f"{_short(before.signal)}, chance {100 * after.chance:.0f} instead of "
        f"{100 * before.chance:.0f} in 100. The guarantee holds if at most {sharing.colluding} of "
        f"{sharing.sites} sites collude with the server. A sum survives the loss of "
        f"{plural(sharing.dropouts, 'site')}. If all other sites collude, a patient has epsilon "
        f"{rounded_up(alone.epsilon)} instead of "
        f"{rounded_up(shared.guarantee().headline.epsilon)}."
    )


def _releases(made: PatientPlan, modes: list[str]) -> Table:
    table = Table("what", title="Releases of each site")
    for name in ("values", "sensitivity", "sigma", "rho"):
        table.add_column(name, justify="right", no_wrap=True)
    for release in made.releases:
        what, count = escape(release.name(modes)), f"{release.count:,}"
        noise = f"{release.sensitivity:g}", f"{release.sigma:.4g}", f"{release.rho:.4g}"
        table.add_row(what, count, *noise)
    return table


def _prospects(planned: Callable[..., PatientPlan], privacy: PrivacySettings, rank: int) -> Table:
    from dpfact_flower.estimation.outlook import outlook_of

    table = Table(
        title="Chance in 100 that all models beat shuffled patients, and signal;\n"
        "in brackets: epsilon for replacing a patient's record"
    )
    epsilons = sorted({*_EPSILONS, privacy.epsilon}, reverse=True)
    choices = [replace(privacy, epsilon=epsilon) for epsilon in epsilons]
    table.add_column("phenotypes", justify="right")
    for chosen in choices:
        price = _replacing(planned(chosen, rank=rank).guarantee())
        table.add_column(f"epsilon {chosen.epsilon:g}{price}", justify="right", no_wrap=True)
    for number in sorted({*_RANKS, rank}):
        outlooks = [outlook_of(planned(chosen, rank=number)) for chosen in choices]
        cells = [
            f"[{_COLOURS[o.verdict]}]{100 * o.chance:.0f}, {_short(o.signal)}[/]" for o in outlooks
        ]
        table.add_row(str(number), *cells)
    return table


def _levers(outlook: Outlook) -> Table:
    table = Table("what", title="What would help, all else equal (more sites bring more patients)")
    table.add_column("good at", justify="right")
    table.add_column("chance in 100,\nat half or double", justify="right")
    for lever in outlook.levers:
        table.add_row(lever.name, lever.text if lever.good else "-", f"{100 * lever.chance:.0f}")
    return table


def _resources(needs: Needs) -> str:
    from dpfact_flower.evaluation.page import size

    text = f"each site needs about {size(needs.memory)} of memory besides its data, and sends "
    text += size(needs.sent)
    if needs.server:
        text += f"; the server needs about {size(needs.server)} of memory"
    return text + f"; far less with codes = {needs.codes}" * bool(needs.codes)


def _short(signal: float) -> str:
    return f"{signal:.2g}" if signal < 100 else f"{signal:,.0f}"


def _as_dict(made: PatientPlan, modes: list[str], outlook: Outlook, needs: Needs) -> dict[str, Any]:
    forecast: dict[str, Any] = {"verdict": outlook.verdict}
    if outlook.verdict != "unknown":
        forecast = {**outlook._asdict(), "levers": [lever._asdict() for lever in outlook.levers]}
    return {
        "rounds": made.rounds,
        "start_share": made.settings.start_share,
        "refine_rounds": made.settings.refine_rounds,
        "delta": made.settings.delta,
        "releases": [{"name": release.name(modes), **asdict(release)} for release in made.releases],
        "guarantee": made.guarantee().to_dict(),
        "outlook": forecast,
        "needs": needs._asdict(),
    }


@ledger_app.command()
def show(
    folder: opt.Folder,
    site: SiteName = "",
    delta: Annotated[float, Option(help="Delta for epsilon; use the site's budget-delta.")] = 1e-5,
    as_json: opt.AsJson = False,
) -> None:
    """Show the cost of every release and the totals, but not the released values.

    FOLDER is the site's folder, or the state-dir that contains it.
    """
    from dpfact_flower.privacy.ledger import Head, Ledger

    with Ledger(_find(folder, site), create=False) as ledger:
        rows, path = ledger.rows(), ledger.path
    head = Head.of(rows)
    running, totals = _accounted(rows, delta)
    if as_json:
        releases = [
            {
                **asdict(row),
                "unprotected": row.unprotected,
                "events": [{**asdict(event), "rho": event.rho} for event in row.events],
                "running_epsilon": total.headline.epsilon if total else None,
                "running_replacing": total.headline.replacing if total else None,
            }
            for row, total in zip(rows, running, strict=True)
        ]
        echo_json({
            "ledger": str(path), "rows": head.rows, "head": head.hash, "delta": delta,
            "releases": releases, "totals": [total.to_dict() for total in totals],
            "unprotected_releases": sum(row.unprotected for row in rows),
        })  # fmt: skip
        return
    if rows:
        console.print(_table(rows, running, delta))
    for line in (*_sentences(rows, totals), f"head {head}"):
        say(line)


@ledger_app.command()
def verify(folder: opt.Folder, site: SiteName = "", noted: Noted = "") -> None:
    """Check that a ledger's file, hash chain and released bytes are intact.

    FOLDER is the site's folder or state-dir. The exit code is 1 if a check fails.
    """
    from dpfact_flower.privacy.ledger import Head, Ledger

    place = _find(folder, site)
    expected = Head.parse(noted) if noted else None
    try:
        with Ledger(place, create=False) as ledger:
            problems = ledger.verify(expected)
            head = None if problems else ledger.head()
    except StateError as error:  # too damaged to open
        problems, head = [str(error)], None
    for problem in problems:
        console.print("[red]problem[/red]", escape(problem), soft_wrap=True)
    if head is None:
        raise typer.Exit(1)
    say(f"OK: {plural(head.rows, 'row')}, head {head}")
    if expected is None:
        say("to detect that the newest rows were deleted, give a head from the site's log: --noted")


@ledger_app.command()
def backup(
    folder: opt.Folder,
    to: Annotated[Path, Option(help="A new folder for the copy.")],
    site: SiteName = "",
) -> None:
    """Copy a ledger, check the copy, and print the copy's head (number of rows, newest hash).

    FOLDER is the site's folder or state-dir. Run as the ledger's owner. The site may be running.
    """
    from dpfact_flower.privacy.ledger import back_up

    head = back_up(_find(folder, site), to.expanduser())
    say(f"OK: {plural(head.rows, 'row')}, head {head}")


@ledger_app.command()
def restore(
    backup_folder: Annotated[Path, typer.Argument(metavar="BACKUP")],
    folder: opt.Folder,
    noted: Annotated[str, Option(help="Last head (ROWS:HASH) in the log, or an old backup's own.")],
) -> None:
    """Restore a lost ledger from a backup, checked against the last head in the site's log.

    BACKUP is the copy's folder. FOLDER is the site's folder, state-dir/SITE. An existing ledger is
    never replaced. A backup with missing rows is refused, because the rows' cost would be lost.
    """
    from dpfact_flower.privacy import ledger

    head = ledger.Head.parse(noted)
    head = ledger.restore(backup_folder.expanduser(), folder.expanduser(), head)
    say(f"OK: {plural(head.rows, 'row')}, head {head}")


def _find(folder: Path, site: str) -> Path:
    """Return the site's folder, which is `folder` or a folder directly inside `folder`."""
    from dpfact_flower.privacy.ledger import LEDGER

    folder = folder.expanduser()
    if (folder / LEDGER).exists() and site in ("", folder.resolve().name):
        return folder
    sites = {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{LEDGER}"))}
    if not site and len(sites) == 1:
        (site,) = sites
    if site in sites:
        return sites[site]
    if not sites:
        whose = f" of site {site!r}" if site else ""
        raise StateError(f"{folder}: no {LEDGER}{whose} here or in a folder directly inside")
    raise StateError(f"--site: need one of {', '.join(sites)}; got {site!r}")


def _accounted(
    rows: Sequence[LedgerRow], delta: float
) -> tuple[list[Guarantee | None], list[Guarantee]]:
    """Return the guarantee for all rows up to each ledger row, and the guarantees for all rows.

    A row without a cost has None instead of a guarantee. Releases with different privacy units or
    neighbouring relations have separate guarantees.
    """
    from dpfact_flower.privacy import account

    running: list[Guarantee | None] = []
    so_far: dict[tuple[str, str], list[ReleaseEvent]] = {}
    for row in rows:
        for event in row.events:
            same_unit = so_far.setdefault((event.unit, event.neighbours), [])
            same_unit.append(event)
        running.append(account(same_unit, delta) if row.events else None)
    return running, [account(events, delta) for _, events in sorted(so_far.items())]


def _table(rows: Sequence[LedgerRow], running: Sequence[Guarantee | None], delta: float) -> Table:
    """Return a table with a line per event. A release's last line shows the total so far."""
    from dpfact_flower.privacy import rounded_up

    title = f"Releases; epsilon: running total at delta {delta:g} (in brackets: replacing a record)"
    table = Table(title=title, show_edge=False, pad_edge=False)  # fits into 80 columns
    for name, width in (("when, UTC", 10), ("job", 8), ("what", 10)):
        table.add_column(name, overflow="fold", min_width=width)
    for name in ("sensitivity", "sigma", "rho", "epsilon"):
        table.add_column(name, justify="right", no_wrap=True)
    for row, total in zip(rows, running, strict=True):
        place = row.recorded[:16].replace("T", " "), escape(row.job)
        for event in row.events:
            mark = " [red](seeded: not private)[/red]" if event.seeded else ""
            figures = (f"{value:.4g}" for value in (event.sensitivity, event.sigma, event.rho))
            cost = ""
            if total and event is row.events[-1]:
                cost = rounded_up(total.headline.epsilon) + _replacing(total)
            table.add_row(*place, escape(event.name) + mark, *figures, cost)
        if not row.events:
            what = "[red]values without noise[/red]" if row.unprotected else "nothing left the site"
            bound = "no bound" if row.unprotected else "-"
            table.add_row(*place, f"round {row.round}, {what}", "-", "-", "-", bound)
    return table


def _replacing(guarantee: Guarantee) -> str:
    """Return the epsilon for replacing a record, in brackets on a new line, or "" if none."""
    from dpfact_flower.privacy import rounded_up

    epsilon = guarantee.headline.replacing
    return "" if epsilon is None else f"\n({rounded_up(epsilon)})"


def _sentences(rows: Sequence[LedgerRow], totals: Sequence[Guarantee]) -> Iterator[str]:
    """Yield sentences about the total costs, and about releases that no total covers."""
    if not totals:
        yield "nothing was charged"
    for total in totals:
        yield (
            f"total over {plural(total.releases, 'charged release')}, unit {total.unit}, "
            f"neighbours {total.neighbours}: rho {total.rho:.4g}, mu {total.mu:.4g}"
        )
        for figure in total.figures:
            yield f"  {figure}"
        if total.alone:
            yield f"  {total.alone}"
    if totals:
        yield (
            "these are totals so far; for jobs planned after seeing results, only the cap "
            "(max-epsilon) is guaranteed"
        )
    if len(totals) > 1:
        yield "totals of different units cannot be added up, although all concern the same patients"
    if unprotected := sum(row.unprotected for row in rows):
        yield (
            f"{plural(unprotected, 'release')} without noise: no epsilon bounds the loss, and no "
            "total holds for the patients concerned"
        )


def audit(
    data: Annotated[
        str, Option(help="Folder that dpfact data wrote, a site's .npz file, or synthetic:PRESET.")
    ] = "synthetic:demo",
    settings: opt.Set = None,
    site: Annotated[str, Option(help="Name of a site in the folder (default: the first).")] = "",
    state_dir: Annotated[
        Path | None, Option(help="The hospital's state-dir, to check its ledger and files as well.")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Run fewer trials, which find only gross faults.")
    ] = False,
    seed: Annotated[int, Option(help="Seed of the audit's choices, not of the noise.", min=0)] = 0,
    flower_app: opt.FlowerApp = opt.APP_FOLDER,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Test the sensitivity and noise of patient mode's releases, and run attacks on the releases.

    The audit sends nothing, spends no budget, and writes nothing into the hospital's state-dir. The
    exit code is 1 if a check fails.
    """
    from dpfact_flower.audit import audit as run_audits
    from dpfact_flower.data.site_data import Cohort, SiteData
    from dpfact_flower.data.synthetic import preset, synthetic
    from dpfact_flower.runtime.config import RunConfig

    config = RunConfig.read(opt.run_config(flower_app, settings, data=data))
    audited: Cohort | SiteData
    path = Path(data).expanduser()
    if config.app.synthetic_preset:
        audited = synthetic(preset(config.app.synthetic_preset))
    else:
        audited = SiteData.load(path) if path.is_file() else Cohort.load(path)
    with progress(hidden=quiet) as watch:
        findings = run_audits(
            audited, config.solver, config.privacy,
            site=site, state_dir=state_dir, quick=quick, seed=seed, watch=watch,
        )  # fmt: skip
    failed = [finding for finding in findings if not finding.passed]
    if as_json:
        echo_json([{**asdict(finding), "passed": finding.passed} for finding in findings])
        raise typer.Exit(bool(failed))
    table = Table("check", "measured", "allowed", "", title="Audit")
    for finding in findings:
        verdict = "[green]passed[/green]" if finding.passed else "[red]FAILED[/red]"
        measured = f"{finding.measured:.5g}"
        table.add_row(escape(finding.name), measured, finding.allowed_text, verdict)
    console.print(table)
    for finding in failed:
        console.print(f"[red]{escape(finding.name)}[/red]: {escape(finding.detail)}")
    if failed:
        console.print(f"[red]{len(failed)} of {len(findings)} checks failed[/red]: do not release")
        raise typer.Exit(1)
    console.print(f"all {len(findings)} checks passed; audits find faults, but prove nothing")
