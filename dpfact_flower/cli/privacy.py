"""`dpfact ledger` and `dpfact audit`: a site's releases and costs, and tests of the proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table
from typer import Option

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import console, echo_json, progress, say
from dpfact_flower.errors import StateError

if TYPE_CHECKING:
    from dpfact_flower.privacy import Guarantee, ReleaseEvent
    from dpfact_flower.privacy.ledger import LedgerRow

ledger_app = typer.Typer(
    name="ledger",
    help="Show and check a site's record of releases, which stays at the site.",
    no_args_is_help=True,
)

Site = Annotated[str, Option(help="Name of the site, if the state-dir has several.")]
Noted = Annotated[str, Option(help="A head in the site's log, ROWS:HASH; detects deleted rows.")]


@ledger_app.command()
def show(
    folder: opt.Folder,
    site: Site = "",
    delta: Annotated[float, Option(help="Delta for epsilon; use the site's budget-delta.")] = 1e-5,
    as_json: opt.AsJson = False,
) -> None:
    """Show the cost of every release and the totals, but not the released values.

    FOLDER is the site's folder, or the state-dir that contains it.
    """
    from dpfact_flower.privacy.ledger import Ledger

    with Ledger(_find(folder, site), create=False) as ledger:
        ledger.events()  # refuses a damaged ledger before any total is printed
        head, rows, path = ledger.head(), ledger.rows(), ledger.path
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
def verify(folder: opt.Folder, site: Site = "", noted: Noted = "") -> None:
    """Check the file, hash chain, released bytes and costs. Exit code 1 if a check fails.

    FOLDER is the site's folder, or the state-dir that contains it.
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
    say(f"OK: {head.rows} rows, head {head}")
    if expected is None:
        say(
            "to detect whether the newest rows were deleted, give a head from the site's log with "
            "--noted"
        )


@ledger_app.command()
def backup(
    folder: opt.Folder,
    to: Annotated[Path, Option(help="A new folder for the copy.")],
    site: Site = "",
) -> None:
    """Copy a whole ledger, check the copy, and print its head. The site may be running.

    FOLDER is the site's folder, or the state-dir that contains it. Run this command as the ledger's
    owner.
    """
    from dpfact_flower.privacy.ledger import back_up

    head = back_up(_find(folder, site), to.expanduser())
    say(f"OK: {head.rows} rows, head {head}")


@ledger_app.command()
def restore(
    backup_folder: Annotated[Path, typer.Argument(metavar="BACKUP")],
    folder: opt.Folder,
    noted: Annotated[str, Option(help="The last head in the site's log, ROWS:HASH.")],
) -> None:
    """Restore a lost ledger from a backup that has every row up to a given head.

    BACKUP is the copy's folder. FOLDER is the site's folder, state-dir/SITE. An existing ledger is
    never replaced. A backup that lacks rows is refused, because the cost of these rows would be
    lost.
    """
    from dpfact_flower.privacy import ledger
    from dpfact_flower.privacy.ledger import Head

    head = ledger.restore(backup_folder.expanduser(), folder.expanduser(), Head.parse(noted))
    say(f"OK: {head.rows} rows, head {head}")


def _find(folder: Path, site: str) -> Path:
    """Return the site's folder: `folder` itself, or a folder directly inside it."""
    from dpfact_flower.privacy.ledger import LEDGER

    folder = folder.expanduser()
    if (folder / LEDGER).exists() and site in ("", folder.resolve().name):
        return folder
    found = {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{LEDGER}"))}
    if site in found:
        return found[site]
    if not found:
        whose = f" of site {site!r}" if site else ""
        raise StateError(f"{folder}: no {LEDGER}{whose} here or in a folder directly inside")
    if len(found) == 1 and not site:
        return next(iter(found.values()))
    raise StateError(f"--site: need one of {', '.join(found)}; got {site!r}")


def _accounted(
    rows: Sequence[LedgerRow], delta: float
) -> tuple[list[Guarantee | None], list[Guarantee]]:
    """Return the running total after each row with a charge, and the final totals.

    Costs can be added up only for events with the same unit and the same neighbouring relation.
    """
    from dpfact_flower.privacy import account

    running: list[Guarantee | None] = []
    so_far: dict[tuple[str, str], list[ReleaseEvent]] = {}
    for row in rows:
        for event in row.events:
            own = so_far.setdefault((event.unit, event.neighbours), [])
            own.append(event)
        running.append(account(own, delta) if row.events else None)
    return running, [account(events, delta) for _, events in sorted(so_far.items())]


def _table(rows: Sequence[LedgerRow], running: Sequence[Guarantee | None], delta: float) -> Table:
    """Return a table of events. The last line of each release shows the running total."""
    title = (
        f"Releases; epsilon is the running total at delta {delta:g}, in brackets for replacing a "
        "patient's record"
    )
    table = Table(title=title, show_edge=False, pad_edge=False)  # fits into 80 columns
    for name, width in (("when, UTC", 10), ("job", 8), ("what", 10)):
        table.add_column(name, overflow="fold", min_width=width)
    for name in ("sensitivity", "sigma", "rho", "epsilon"):
        table.add_column(name, justify="right", no_wrap=True)
    for row, total in zip(rows, running, strict=True):
        place = row.recorded[:16].replace("T", " "), escape(row.job)
        for event in row.events:
            mark = " [red](seeded: not private)[/red]" if event.seeded else ""
            figures = (f"{each:.4g}" for each in (event.sensitivity, event.sigma, event.rho))
            cost = _epsilon(total) if total and event is row.events[-1] else ""
            table.add_row(*place, escape(event.name) + mark, *figures, cost)
        if not row.events:
            what = "[red]values without noise[/red]" if row.unprotected else "nothing left the site"
            bound = "no bound" if row.unprotected else "-"
            table.add_row(*place, f"round {row.round}, {what}", "-", "-", "-", bound)
    return table


def _epsilon(total: Guarantee) -> str:
    from dpfact_flower.privacy import rounded_up

    figure = total.headline
    price = "" if figure.replacing is None else f"\n({rounded_up(figure.replacing)})"
    return rounded_up(figure.epsilon) + price


def _sentences(rows: Sequence[LedgerRow], totals: Sequence[Guarantee]) -> Iterator[str]:
    """Yield sentences: the total cost under each accountant, then any warnings."""
    if not totals:
        yield "nothing was charged"
    for total in totals:
        yield (
            f"total over {total.releases} charged releases, unit {total.unit}, "
            f"neighbours {total.neighbours}: rho {total.rho:.4g}, mu {total.mu:.4g}"
        )
        for figure in total.figures:
            yield f"  {figure}"
        if total.alone:
            yield f"  {total.alone}"
    if len(totals) > 1:
        yield (
            "totals of different units cannot be added up; each covers only its own releases, "
            "although all concern the same patients"
        )
    if unprotected := sum(row.unprotected for row in rows):
        yield (
            f"{unprotected} releases without noise: no epsilon bounds them, and no total holds "
            "for a patient in those releases"
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
        bool, Option("--quick", help="Fewer trials; finds gross faults only.")
    ] = False,
    seed: Annotated[int, Option(help="Seed of the audit's choices, not of the noise.", min=0)] = 0,
    flower_app: opt.FlowerApp = opt.APP_FOLDER,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
) -> None:
    """Test the sensitivity and noise of patient mode, and attack it. Exit code 1 if a check fails.

    The audit sends nothing, spends no budget, and writes nothing into the hospital's state-dir.
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
    with progress(hidden=verbose or quiet) as watch:
        findings = run_audits(
            audited, config.solver, config.privacy,
            site=site, state_dir=state_dir, quick=quick, seed=seed, watch=watch,
        )  # fmt: skip
    failed = [finding for finding in findings if not finding.passed]
    if as_json:
        echo_json([{**asdict(found), "passed": found.passed} for found in findings])
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
