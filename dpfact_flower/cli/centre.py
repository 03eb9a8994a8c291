"""Define the commands `dpfact centre`, `superlink`, `submit` and `status`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import console, echo_json, say
from dpfact_flower.errors import SettingsError, plural
from dpfact_flower.runtime.services import run_superlink
from dpfact_flower.runtime.superlink import COMPLETED, UNKNOWN, Connection
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from dpfact_flower.server.status import RunStatus

FAILED = 1
"""Exit code for a run that failed or is not finished yet."""
NOT_REPORTED = 4
"""Exit code if the SuperLink does not report how a run ended."""

centre_app = typer.Typer(
    name="centre", help="At the centre: set up the files, admit hospitals.", no_args_is_help=True
)


@centre_app.command("init")
def centre_init(
    name: Annotated[str, Argument()],
    folder: opt.Home = opt.HOME,
    port: opt.Port = 9190,
    renew: Annotated[
        bool, Option("--renew", help="Only renew the server's certificate, for two years from now.")
    ] = False,
) -> None:
    """Write a centre's certificates, systemd unit, proxy configuration and Flower configuration.

    NAME is the DNS name or IPv4 address at which hospitals reach the centre.
    """
    from dpfact_flower.runtime.check import program_faults
    from dpfact_flower.runtime.installation import cert_fingerprint, renew_centre, write_centre

    folder = folder.expanduser().absolute()
    if renew:
        renew_centre(folder, name)
        say(f"Restart dpfact-centre and the proxy to use the new {folder}/server.pem.")
        return
    write_centre(folder, name, port)
    authority = cert_fingerprint((folder / "ca.crt").read_bytes())
    say(
        f"Written to {folder}.\n"
        f"1. Start it. Read {folder}/install.sh, then: sudo sh {folder}/install.sh\n"
        f"   To try it without root: sh {folder}/start.sh\n"
        f"2. Move {folder}/ca.key to a safe. You need the key again to renew the certificate.\n"
        f"3. Give {folder}/ca.crt to each hospital. Read them its fingerprint by telephone:\n"
        f"   {authority}\n"
        f"4. Admit each hospital by its .pub file: dpfact centre admit NAME.pub --folder {folder}"
    )
    for fault in program_faults():
        say(f"FIX {fault}")


@centre_app.command("admit")
def centre_admit(
    public_key: Annotated[Path, Argument(metavar="NAME.pub")],
    folder: Annotated[Path, Option(help="The folder of dpfact centre init.")] = opt.HOME,
    fingerprint: Annotated[str, Option(help="Fingerprint from the hospital (default: ask).")] = "",
) -> None:
    """Register a hospital's key, after you have compared the key's fingerprint by telephone.

    NAME.pub is the file that dpfact site init wrote at the hospital. NAME must be the hospital's
    name, because the key is registered under NAME. The centre must be running.
    """
    from dpfact_flower.runtime.installation import key_fingerprint

    path = public_key.expanduser().absolute()
    check_name("NAME", path.stem)
    actual = key_fingerprint(path.read_bytes())
    if not fingerprint:
        typer.confirm(f"{path.stem}: {actual}\nDid the hospital read the same to you?", abort=True)
    elif fingerprint.split() != actual.split():
        raise SettingsError(
            f"--fingerprint: the key in {path} has {actual}; nothing was registered. Ask the "
            "hospital for its file again"
        )
    node = Connection.of(str(folder.expanduser())).register(path, path.stem)
    say(f"{path.stem} is admitted, as node {node}. Its SuperNode can now connect.")


def superlink(context: typer.Context) -> None:
    """Run a SuperLink with flower-superlink's options, and exit if the SuperLink's helper exits.

    The SuperLink's helper process starts the runs. Without the helper, runs would stay pending.
    """
    run_superlink(context.args)


def submit(
    connection: Annotated[str, Argument()],
    out: opt.Out,
    vocabulary: Annotated[str, Option(help="Code list files, one per mode, as in a.json,b.json.")],
    settings: opt.Set = None,
    flower_app: opt.FlowerApp = opt.APP_FOLDER,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Start a run on a deployed federation, print the run's log, and wait until the run ends.

    CONNECTION is the folder that dpfact centre init wrote, or a SuperLink's name in Flower's
    config.toml. With --json, the log goes to standard error. The exit code is 0 if the run
    finished, 1 if the run failed, and 4 if the run's result is unknown. If the command itself
    fails, the exit code is 2, but the run may have started. After Ctrl-C, the run continues.
    """
    from dpfact_flower.runtime.config import RunConfig, load_vocabularies

    opt.refuse_finished(out, settings, force=force)  # a second run would spend epsilon again
    files = filter(None, map(str.strip, vocabulary.split(",")))
    lists = ",".join(str(Path(file).expanduser().resolve()) for file in files)
    folder = str(out.expanduser().resolve())
    config = opt.run_config(flower_app, settings, data="", vocabulary=lists, out=folder)
    load_vocabularies(RunConfig.read(config).app)
    link = Connection.of(connection)
    run = link.submit(flower_app, config)
    typer.echo(f"run {run} on {connection}; run folder: {folder}", err=as_json)
    try:
        ended = link.follow(run, 2 if as_json else None)  # 2: standard error
    except KeyboardInterrupt:
        typer.echo(f"run {run} continues; to end it: {link.command(f'stop {run}')}", err=True)
        raise typer.Exit(130) from None
    status, details = str(ended["status"]), ended.get("status-details", "")
    if as_json:
        echo_json({"run": run, "status": status, "details": details, "out": folder})
    else:
        typer.echo(f"run {run}: {status}")
    if status != COMPLETED:
        raise typer.Exit(NOT_REPORTED if status == UNKNOWN else FAILED)


def status(folder: opt.Folder, as_json: opt.AsJson = False) -> None:
    """Show a deployed run's progress and sites, and the epsilon of each site's replies.

    FOLDER is the run folder (--out). The exit code is 1 until all rounds are finished. The epsilon
    shown counts only usable replies. The site's own ledger is exact: it counts every charged reply.
    """
    from dpfact_flower.server.status import run_status

    run = run_status(folder.expanduser())
    if as_json:
        echo_json(asdict(run))
    else:
        _show(run)
    if not run.is_finished:
        raise typer.Exit(FAILED)


def _show(run: RunStatus) -> None:
    end = f", the latest ended {run.last}" if run.last else ""
    lines = [f"{site.name}: {site.reason}" for site in run.sites if site.reason]
    if run.missed:
        rounds = ", ".join(map(str, run.missed))
        lines.append(f"rounds that have not changed the model although sites answered: {rounds}")
    if not run.is_finished:
        lines.append(
            "not finished: if no process is working on the run, continue with resume=true; sites "
            "resend answers that were already charged, at no cost"
        )
    table = Table(show_edge=False, pad_edge=False)
    for name in ("site", "last seen, UTC"):
        table.add_column(name, overflow="fold")
    for name in ("used", "unused", "failed", "epsilon", "unused eps."):
        table.add_column(name, justify="right", overflow="fold")
    for site in run.sites:
        counts = map(str, (site.used, site.unused, site.failed))
        costs = map(_epsilon, (site.epsilon, site.epsilon_unused))
        last_seen = site.last_seen[:16].replace("T", " ")
        table.add_row(escape(site.name), last_seen, *counts, *costs)
    say(f"job {run.job}: {run.finished} of {plural(run.rounds, 'round')}{end}")
    console.print(table)
    for line in lines:
        say(line)


def _epsilon(value: float | None) -> str:
    from dpfact_flower.privacy import rounded_up

    return "no bound" if value is None else rounded_up(value) if value else "-"
