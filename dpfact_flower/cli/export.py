"""`dpfact export`, `label`: a run's results as tables, and names for its phenotypes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dpfact_flower.cli.options import console
from dpfact_flower.errors import SettingsError

# What each command needs is imported inside it: `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    phenotypes: Annotated[
        Path | None,
        typer.Option(help="CSV to write: phenotype, title, mode, code, share, lift. Public."),
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="So many codes a phenotype and mode (default: all).", min=1)
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(help="CSV to write: a row a patient of --data, what they have, all scores."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A site's .npz file, of the run or of new patients.")
    ] = None,
) -> None:
    """Write phenotypes, or which patients of a site have them, as CSV.

    RUN is the run's folder. --phenotypes is as public as the model. --patients fits each patient of
    --data to the phenotypes, at the hospital and for the hospital: no privacy guarantee covers the
    file, and only its owner can read it. A site that took part needs the run's global_model.npz
    and config.toml for it, and nothing else.
    """
    from dpfact_flower.data.site_data import load_site
    from dpfact_flower.evaluation.cards import titles
    from dpfact_flower.evaluation.export import (
        memberships,
        phenotype_rows,
        write_memberships,
        write_phenotype_table,
    )
    from dpfact_flower.evaluation.model import GlobalModel

    if phenotypes is None and patients is None:
        raise SettingsError("export: say what to write: --phenotypes FILE, --patients FILE or both")
    if (patients is None) != (data is None):
        raise SettingsError("export: --patients FILE and --data SITE.npz belong together")
    if phenotypes is not None:
        rows = phenotype_rows(run, top=top)
        write_phenotype_table(phenotypes, rows, titles(run, GlobalModel.read(run).names))
        _say(f"{phenotypes}: {len(rows):,} rows of codes, public as the model is")
    if patients is not None and data is not None:
        found = memberships(run, load_site(data))
        write_memberships(patients, found)
        some = int(found.has.any(axis=1).sum())
        _say(
            f"{patients}: {len(found.patients):,} patients; {some:,} have at least one phenotype, "
            f"{len(found.patients) - some:,} have none; {found.without:,} of these have no cell "
            "with the model's codes"
        )
        _say(f"{found.missing:,} codes of the model are not in this site's lists.")
        _say("This file is about single patients and no guarantee covers it: keep it here.")


def label(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    phenotype: Annotated[int, typer.Argument(metavar="PHENOTYPE")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
) -> None:
    """Name a phenotype of a finished run: dpfact label runs/demo 3 "renal failure".

    The name stands in exports and in the report, which is written again. An empty name takes it
    away. Names lie in names.toml in the run's folder.
    """
    from dpfact_flower.evaluation.names import write_name
    from dpfact_flower.evaluation.report import write_report
    from dpfact_flower.evaluation.run_folder import REPORT, read_model

    factors, _ = read_model(run)
    write_name(run, phenotype, name, factors[0].shape[1])
    if (run / REPORT).exists():
        _say(f"report: {write_report(run)}")


def _say(text: str) -> None:
    console.print(escape(text), soft_wrap=True)
