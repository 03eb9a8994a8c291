"""`dpfact audit`: tests of patient mode's claims on a site's own settings and data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from typer import Option

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import console, echo_json, progress


def audit(
    data: Annotated[
        str, Option(help="Folder that dpfact data wrote, a site's .npz file, or synthetic:PRESET.")
    ] = "synthetic:demo",
    settings: opt.Set = None,
    site: Annotated[str, Option(help="Which site of a folder; by default the first.")] = "",
    state_dir: Annotated[
        Path | None, Option(help="The hospital's state-dir: its ledger and files are checked too.")
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Fewer trials: only gross faults.")] = False,
    seed: Annotated[int, Option(help="Of the auditor's choices, not of the noise.", min=0)] = 0,
    flower_app: opt.FlowerApp = opt.APP_FOLDER,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
) -> None:
    """Audit patient mode: sensitivity, noise and an adversary. Exit code 1 if a check fails.

    Nothing is sent, no budget is spent, and nothing is written into the hospital's state-dir.
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
    console.print(f"all {len(findings)} checks passed; an audit finds faults, but proves nothing")
