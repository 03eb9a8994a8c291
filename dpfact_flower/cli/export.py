"""`dpfact export`, `label`, `review`: a run's results as tables, names and chart reviews."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dpfact_flower.cli.options import console
from dpfact_flower.errors import SettingsError

# Imports are inside the commands, because `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    phenotypes: Annotated[
        Path | None,
        typer.Option(help="CSV to write: phenotype, title, mode, code, share, groups. Public."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Number of codes for each phenotype and mode (default: all).", min=1),
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(help="CSV to write: a row for each patient of --data, phenotypes and scores."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A site's .npz file, of the run or of new patients.")
    ] = None,
) -> None:
    """Write a run's phenotypes, or the phenotypes of a site's patients, as CSV.

    RUN is the run's folder. The file of --phenotypes is as public as the model. --patients fits
    each patient of --data to the phenotypes, at the hospital and for the hospital. No privacy
    guarantee covers the file of --patients, and only its owner can read it. A site that took part
    needs only the run's global_model.npz and config.toml.
    """
    from dpfact_flower.data.site_data import load_site
    from dpfact_flower.evaluation.clinical import about, clinical_measures
    from dpfact_flower.evaluation.model import GlobalModel, write_phenotype_table
    from dpfact_flower.evaluation.prose import titles

    if phenotypes is None and patients is None:
        raise SettingsError("export: say what to write: --phenotypes FILE, --patients FILE or both")
    if (patients is None) != (data is None):
        raise SettingsError("export: --patients FILE and --data SITE.npz belong together")
    model = GlobalModel.read(run)
    if phenotypes is not None:
        rows = model.rows(top=top)
        found = clinical_measures(model.factors, model.vocabularies)
        groups = {number: about(found, number) for number in range(1, model.rank + 1)}
        write_phenotype_table(phenotypes, rows, titles(model), groups)
        _say(f"{phenotypes}: {len(rows):,} rows of codes, public as the model is")
    if patients is not None and data is not None:
        memberships = model.memberships(load_site(data))
        memberships.write(patients)
        some = int(memberships.has.any(axis=1).sum())
        _say(
            f"{patients}: {len(memberships.patients):,} patients; {some:,} have at least one "
            f"phenotype, {len(memberships.patients) - some:,} have none; {memberships.without:,} "
            "of these have no cell with the model's codes"
        )
        _say(f"{memberships.missing:,} codes of the model are not in this site's lists.")
        _say("This file is about single patients and no guarantee covers it: keep it here.")


def label(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    phenotype: Annotated[int, typer.Argument(metavar="PHENOTYPE")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
) -> None:
    """Name a phenotype of a finished run: dpfact label runs/demo 3 "renal failure".

    The name appears in exports and in the report, which is written again. An empty name removes an
    earlier name. Names are kept in names.toml in the run's folder.
    """
    from dpfact_flower.evaluation.run_folder import read_model, write_name

    factors, _ = read_model(run)
    write_name(run, phenotype, name, factors[0].shape[1])
    _write_report_again(run)


def review(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    data: Annotated[Path | None, typer.Option(help="The site's .npz file.")] = None,
    phenotype: Annotated[int | None, typer.Option(help="Number of the phenotype.")] = None,
    patients: Annotated[
        int,
        typer.Option(
            help="Number of charts, 4 or more: half with high scores, half near the threshold."
        ),
    ] = 20,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="STEM", show_default="review-PHENOTYPE",
            help="Files to write: STEM.csv, STEM.html, STEM.key.json.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random order (default: none).", min=0)
    ] = None,
    read: Annotated[
        Path | None, typer.Option(help="A completed sheet to count.")
    ] = None,
) -> None:  # fmt: skip
    """Check a phenotype against patients' charts, at the hospital: make a sheet, then read it.

    --data and --phenotype write a sheet for a clinician to fill in, STEM.csv, and a page with
    instructions, STEM.html. The order is random, and the scores are in a separate file,
    STEM.key.json. All three files are about single patients and no privacy guarantee covers them:
    keep them at the hospital.

    --read STEM.csv counts the verdicts. A decision in the sheet is recorded in RUN/names.toml, with
    rounded shares of ten charts or more, and the report is written again.
    """
    if read is not None and (data, phenotype, out, seed) == (None,) * 4:
        _read_review(run, read)
    elif read is None and data is not None and phenotype is not None:
        from dpfact_flower.data.site_data import load_site
        from dpfact_flower.evaluation.review import write_sheet

        stem = out or Path(f"review-{phenotype}")
        sheet = write_sheet(run, load_site(data), phenotype, stem, patients=patients, seed=seed)
        _say(f"{sheet}: {patients} patients; open {sheet.with_suffix('.html')} and begin there")
        _say(f"{sheet.with_suffix('.key.json')}: the scores; keep it, unread, beside the sheet")
        _say("These files are about single patients and no guarantee covers them: keep them here.")
    else:
        raise SettingsError(
            "review: make a sheet with --data SITE.npz --phenotype N, or read one with --read FILE"
        )


def _read_review(run: Path, sheet: Path) -> None:
    from dpfact_flower.evaluation.review import apply_verdicts, read_sheet

    found = read_sheet(run, sheet)
    _say(f"phenotype {found.phenotype}, highest scores: {found.highest}")
    _say(f"phenotype {found.phenotype}, near the threshold: {found.near}")
    if not found.decision:
        _say(f"No decision yet: write keep, drop or name in the last line of {sheet}.")
        return
    apply_verdicts(run, found)
    _say(f"{found.decision}: noted in {run / 'names.toml'}, with shares of ten charts or more")
    _say("These shares come from patients and no guarantee covers them.")
    _write_report_again(run)


def _write_report_again(run: Path) -> None:
    from dpfact_flower.evaluation.report import write_report
    from dpfact_flower.evaluation.run_folder import REPORT

    if (run / REPORT).exists():
        _say(f"report: {write_report(run)}")


def _say(text: str) -> None:
    console.print(escape(text), soft_wrap=True)
