"""`dpfact audit`: tests of patient mode's claims on a site's own settings and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dpfact_flower.cli.options import (
    APP_FOLDER,
    AsJson,
    FlowerApp,
    Quiet,
    Set,
    Verbose,
    console,
    echo_json,
    progress,
    run_config,
)
from dpfact_flower.errors import SettingsError

if TYPE_CHECKING:
    from dpfact_flower.audit import Finding
    from dpfact_flower.data.site_data import Cohort, SiteData
    from dpfact_flower.runtime.config import RunConfig

# Imports are inside the command, because `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415

Data = Annotated[
    str,
    typer.Option(help="Folder that dpfact data wrote, a site's .npz file, or synthetic:PRESET."),
]
Site = Annotated[str, typer.Option(help="Which site of a folder; by default the first.")]
StateDir = Annotated[
    Path | None,
    typer.Option(help="The hospital's state-dir: its ledger and file permissions are checked too."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer trials: finds only gross faults.")]
Seed = Annotated[
    int, typer.Option(help="Seed of the auditor's choices; the noise has no seed.", min=0)
]


def audit(
    data: Data = "synthetic:demo",
    settings: Set = None,
    site: Site = "",
    state_dir: StateDir = None,
    quick: Quick = False,
    seed: Seed = 0,
    flower_app: FlowerApp = APP_FOLDER,
    as_json: AsJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Audit patient mode: sensitivity, noise and an adversary. Exit code 1 if a check fails.

    Nothing is sent, no budget is spent, and nothing is written into the hospital's state-dir.
    """
    from dpfact_flower.audit import audit as run_audits
    from dpfact_flower.runtime.config import RunConfig

    config = RunConfig.read(run_config(flower_app, settings, data=data))
    audited = _load(config, data)
    with progress(hidden=verbose or quiet) as watch:
        findings = run_audits(
            audited, config.solver, config.privacy,
            site=site, state_dir=state_dir, quick=quick, seed=seed, watch=watch,
        )  # fmt: skip
    failed = [finding for finding in findings if not finding.passed]
    if as_json:
        echo_json([{**asdict(found), "passed": found.passed} for found in findings])
        raise typer.Exit(bool(failed))
    console.print(_table(findings))
    if failed:
        for finding in failed:
            console.print(f"[red]{escape(finding.name)}[/red]: {escape(finding.detail)}")
        console.print(f"[red]{len(failed)} of {len(findings)} checks failed[/red]: do not release")
        raise typer.Exit(1)
    console.print(f"all {len(findings)} checks passed; an audit finds faults, but proves nothing")


def _load(config: RunConfig, data: str) -> Cohort | SiteData:
    """Load a cohort or one hospital's own file. Synthetic data is made in memory."""
    from dpfact_flower.data.site_data import Cohort, SiteData
    from dpfact_flower.data.synthetic import preset, synthetic

    if not data:
        raise SettingsError("data: an audit needs data")
    if config.app.synthetic_preset:
        return synthetic(preset(config.app.synthetic_preset))
    path = Path(data).expanduser()
    return SiteData.load(path) if path.is_file() else Cohort.load(path)


def _table(findings: Sequence[Finding]) -> Table:
    """Return a table with a row for each check. The JSON output has the details."""
    table = Table("check", "measured", "allowed", "", title="Audit")
    for finding in findings:
        verdict = "[green]passed[/green]" if finding.passed else "[red]FAILED[/red]"
        name, allowed = escape(finding.name), finding.allowed_text
        table.add_row(name, f"{finding.measured:.5g}", allowed, verdict)
    return table
