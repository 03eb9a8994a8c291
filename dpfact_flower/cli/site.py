"""`dpfact site`: what a hospital does at home, apart from any message."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dpfact_flower.cli.options import PASSED_ON, AsJson, console, echo_json, progress
from dpfact_flower.errors import StateError

# What each command needs is imported inside it: `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415

site_app = typer.Typer(
    help="At a hospital: answer, check the machine, figures, its own model.", no_args_is_help=True
)

Config = Annotated[
    Path, typer.Option(help="The site's settings: a TOML file, as deploy.md has it.")
]


@site_app.command("answer")
def site_answer(
    config: Config,
    secret: Annotated[Path, typer.Option(help="The SuperNode's --superexec-auth-secret-file.")],
    port: Annotated[int, typer.Option(help="The SuperNode's --port.", min=1, max=65535)] = 9094,
    host: Annotated[
        str, typer.Option(help="Its --host: this machine, or a container of it.")
    ] = "127.0.0.1",
    node_user: Annotated[
        str, typer.Option(help="Whose it is: nobody else's is answered (default: your own).")
    ] = "",
) -> None:
    """Answer what a SuperNode with --isolation process receives, with the installed code alone.

    Stands in for flower-superexec, which would start what the SuperLink sends. Runs until it is
    ended.
    """
    from dpfact_flower.runtime.executor import execute

    execute(config, secret, port, host, node_user)


@site_app.command("connect", context_settings=PASSED_ON, add_help_option=False)
def site_connect(context: typer.Context) -> None:
    """Be Flower's SuperNode, which ends where it gives up; options of flower-supernode.

    Flower's own command goes on running then, offline, and nobody starts it again.
    """
    from dpfact_flower.runtime.connect import connect

    connect(context.args)


@site_app.command("check")
def site_check(
    config: Config,
    key: Annotated[Path, typer.Option(help="The SuperNode's --auth-supernode-private-key.")],
    as_json: AsJson = False,
) -> None:
    """Check that the installed code answers here, and nothing else; exit code 1 if not.

    Run it as root, while the SuperNode and dpfact site answer are running: others do not see all.
    """
    from dpfact_flower.site.check import check_site

    findings = check_site(config, key)
    if as_json:
        echo_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            for line in finding.faults or (finding.check,):
                mark = "[red]MEND[/red]" if finding.faults else "[green]OK[/green]  "
                console.print(f"{mark} {escape(line)}", soft_wrap=True, highlight=False)
    if any(finding.faults for finding in findings):
        raise typer.Exit(1)


@site_app.command("metrics")
def site_metrics(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="File to write; else they are printed.")] = None,
) -> None:
    """Figures for Prometheus' textfile collector: epsilon left, last charge, failures.

    They stay in the house. Run it as the executor's user.
    """
    from dpfact_flower.machine.prometheus import exposition, write_exposition
    from dpfact_flower.settings import SiteSettings
    from dpfact_flower.site.config import read_node_config
    from dpfact_flower.site.metrics import site_gauges

    gauges = site_gauges(SiteSettings.from_config(read_node_config(config)))
    if out is None:
        typer.echo(exposition(gauges), nl=False)
    else:
        write_exposition(out, gauges)


@site_app.command("refit")
def site_refit(
    config: Config,
    job: Annotated[str, typer.Option(help="One run alone (default: all that have ended).")] = "",
) -> None:
    """Fit the site's own model around the global phenotypes of runs in patient mode.

    The last round of a run only notes what the server said. This fits the site's own patients to
    it, at full precision and for the site alone: the model lies in the job's folder and is never
    sent. A model that is there already is fitted again where --job names its run.
    """
    from dpfact_flower.data.site_data import load_site
    from dpfact_flower.settings import SiteSettings
    from dpfact_flower.site.config import read_node_config
    from dpfact_flower.site.refit import refit, unfitted

    settings = SiteSettings.from_config(read_node_config(config))
    site = load_site(settings.data_path)
    folder = Path(settings.state_dir, settings.site or site.name)
    jobs = [job] if job else unfitted(folder)
    if not jobs:
        raise StateError(f"{folder}: no run in patient mode has ended here that is not fitted yet")
    texts = []
    with progress() as watch:
        for done, each in enumerate(jobs):
            watch("fitting", done / len(jobs))
            fit = refit(site, settings, each).error.fit
            texts.append(f"{each}: explains {fit:.1%} of this site's data; in {folder / each}")
    for text in texts:
        console.print(escape(text), soft_wrap=True)
