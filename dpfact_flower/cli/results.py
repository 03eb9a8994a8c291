"""Define the commands `dpfact report`, `compare`, `export`, `label`, `review` and `survey`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import say
from dpfact_flower.data.site_data import SiteData, site_files
from dpfact_flower.errors import SettingsError, plural

if TYPE_CHECKING:
    from dpfact_flower.evaluation.model import GlobalModel


def report(
    folder: opt.Folder,
    beside: Annotated[
        list[Path] | None,
        Option(help="Another finished run in which to look for the phenotypes; may be repeated."),
    ] = None,
) -> None:
    """Rewrite report.html from the files in a finished run's folder.

    With --beside, the report says which phenotypes the other runs also found. The other runs may
    have different noise, another epsilon or no noise. Matching phenotypes are saved in beside.json.
    """
    from dpfact_flower.evaluation.comparison import replications
    from dpfact_flower.evaluation.report import write_report
    from dpfact_flower.evaluation.review import digest
    from dpfact_flower.evaluation.run_folder import BESIDE, write_json

    if beside:
        found = replications(folder, beside)
        if len({digest(run) for run in (folder, *beside)}) < 1 + len(beside):
            raise SettingsError("--beside: two of these runs have the same model; give other runs")
        write_json(folder / BESIDE, found)
    say(f"report: {write_report(folder)}")


def compare(
    folders: Annotated[list[Path], Argument()],
    out: Annotated[Path | None, Option(help="Also write an HTML page, e.g. compare.html.")] = None,
) -> None:
    """Compare finished runs in a Markdown table and, with --out, on an HTML page.

    The table has a row for each run folder. The page also plots quality against epsilon, and
    lists the first run's phenotypes beside their matches in the other runs.
    """
    from dpfact_flower.evaluation.comparison import comparison, write_comparison

    typer.echo(comparison(folders))
    if out is not None:
        say(f"page: {write_comparison(folders, out)}")


def export(
    run: opt.Run,
    phenotypes: Annotated[
        Path | None,
        Option(help="CSV file to write: each phenotype's codes, with shares and certainty."),
    ] = None,
    patients: Annotated[
        Path | None,
        Option(help="CSV file to write: the phenotypes and scores of each patient in --data."),
    ] = None,
    data: Annotated[
        Path | None,
        Option(help="A .npz file of a site or of new patients, or a cohort's folder."),
    ] = None,
) -> None:
    """Write a run's phenotypes, or each patient's phenotype scores, as CSV.

    RUN is the run folder, or a folder with a run's global_model.npz and config.toml. The
    --phenotypes file is as public as the model. No privacy guarantee covers the --patients file:
    keep this file at the hospital. Only the owner of an exported file can read it.
    """
    from dpfact_flower.evaluation import prose
    from dpfact_flower.evaluation.clinical import about, clinical_measures
    from dpfact_flower.evaluation.model import GlobalModel, write_phenotype_table
    from dpfact_flower.evaluation.run_folder import SUMMARY, read_replications, read_summary

    if phenotypes is None and patients is None:
        raise SettingsError("export: say what to write: --phenotypes FILE, --patients FILE or both")
    if (patients is None) != (data is None):
        raise SettingsError("export: --patients FILE and --data SITE.npz belong together")
    model = GlobalModel.read(run)
    summary = read_summary(run) if (run / SUMMARY).exists() else None
    if summary is not None and (nothing := prose.uninformative_message(summary)):
        say(f"warning: {nothing}")
    others = read_replications(run, model.rank)
    sure, least = prose.certainties(model, others, summary), {prose.DOUBTFUL, prose.NOT_FOUND}
    if doubtful := [str(r) for r, labels in sure.items() if least & {*labels}]:
        say(f"doubtful{' or not found again' * bool(others)}: phenotype(s) {', '.join(doubtful)}")
    if phenotypes is not None:
        rows = model.rows()
        measures = clinical_measures(model)
        groups = {r: (", ".join(labels), *about(measures, r)) for r, labels in sure.items()}
        write_phenotype_table(phenotypes, rows, prose.titles(model), groups)
        public = "the model and the runs beside it" if others else "the model"
        say(f"{phenotypes}: {plural(len(rows), 'row')} of codes, as public as {public}")
    if patients is not None and data is not None:
        _export_patients(model, data, patients)


def _export_patients(model: GlobalModel, data: Path, out: Path) -> None:
    from dpfact_flower.evaluation.model import write_memberships

    files = site_files(data) if data.is_dir() else [data]
    by_site = {file.stem: model.memberships(SiteData.load(file)) for file in files}
    write_memberships(out, by_site, cohort=data.is_dir())
    sites = by_site.values()
    patients = sum(len(site.patients) for site in sites)
    some = sum(int(site.has.any(axis=1).sum()) for site in sites)
    say(f"{out}: patients with at least one phenotype: {some:,} of {patients:,}")
    if without := sum(site.without for site in sites):
        say(f"patients who have no cell with the model's codes: {without:,}")
    if outside := sum(site.outside for site in sites):
        say(f"cells with a code outside the model's lists, left out: {outside:,}")
    if missing := max(site.missing for site in sites):
        say(f"codes of the model that are not in the data's lists: {missing:,}")
    say("This file is about individual patients. No privacy guarantee covers it: keep it here.")


def label(
    run: opt.Run,
    phenotype: Annotated[int, Argument(metavar="PHENOTYPE")],
    name: Annotated[str, Argument(metavar="NAME")],
) -> None:
    """Name a phenotype of a finished run, as in dpfact label runs/demo 3 "renal failure".

    The command updates the report, and later exports contain the name. An empty name removes the
    earlier name. Names are saved in names.toml in the run folder.
    """
    from dpfact_flower.evaluation.model import GlobalModel
    from dpfact_flower.evaluation.run_folder import Names, write_names

    write_names(run, Names({phenotype: name}))
    if (same := [*GlobalModel.read(run).names.values()].count(name.strip())) > 1:
        say(f"warning: {same} phenotypes are called {name.strip()}")
    _write_report_again(run)


def review(
    run: opt.Run,
    data: Annotated[
        Path | None, Option(help="The .npz file of a site or of new patients.")
    ] = None,
    phenotype: Annotated[int | None, Option(help="Number of the phenotype.")] = None,
    patients: Annotated[
        int,
        Option(help="Number of charts, 4 or more: half with high scores, half near the threshold."),
    ] = 20,
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="STEM", show_default="review-PHENOTYPE",
               help="Files to write: STEM.csv, STEM.html, STEM.key.json."),
    ] = None,
    seed: opt.Seed = None,
    read: Annotated[Path | None, Option(help="A completed sheet, to count its verdicts.")] = None,
) -> None:  # fmt: skip
    """Check a phenotype against charts at the hospital: make a sheet, then count the verdicts.

    With --data and --phenotype, the command writes a sheet for a clinician's verdicts (STEM.csv),
    instructions (STEM.html) and the patients' scores (STEM.key.json). The sheet lists the patients
    in random order. No privacy guarantee covers the three files: keep the files at the hospital.

    With --read STEM.csv, the command counts the verdicts, records the sheet's decision (keep, drop
    or name) in RUN/names.toml, and rewrites the report. For each half of the charts that has ten or
    more verdicts, the command also records the rounded share of confirmed charts.
    """
    if read is not None and (data, phenotype, out, seed) == (None,) * 4:
        _read_review(run, read)
    elif read is None and data is not None and phenotype is not None:
        from dpfact_flower.evaluation.review import write_sheet

        stem = out or Path(f"review-{phenotype}")
        sheet = write_sheet(run, SiteData.load(data), phenotype, stem, patients=patients, seed=seed)
        say(
            f"{sheet}: {patients} patients; begin with {sheet.with_suffix('.html')}\n"
            f"{sheet.with_suffix('.key.json')}: the scores; keep it, unread, beside the sheet\n"
            "These files are about individual patients. No privacy guarantee covers them: keep "
            "them here."
        )
    else:
        raise SettingsError("review: give --data SITE.npz and --phenotype N, or only --read SHEET")


def _read_review(run: Path, sheet: Path) -> None:
    from dpfact_flower.evaluation.review import apply_verdicts, read_sheet

    verdicts = read_sheet(run, sheet)
    say(f"phenotype {verdicts.phenotype}, highest scores: {verdicts.highest}")
    say(f"phenotype {verdicts.phenotype}, near the threshold: {verdicts.near}")
    if not verdicts.decision:
        say(f"No decision yet: write keep, drop or name in the last line of {sheet}.")
        return
    apply_verdicts(run, verdicts)
    say(f"{verdicts.decision}: recorded in {run / 'names.toml'}")
    if any(half.public_share != (None, None) for half in (verdicts.highest, verdicts.near)):
        say("The recorded shares come from patients' charts. No privacy guarantee covers them.")
    _write_report_again(run)


def _write_report_again(run: Path) -> None:
    from dpfact_flower.evaluation.report import write_report
    from dpfact_flower.evaluation.run_folder import REPORT

    if (run / REPORT).exists():
        say(f"report: {write_report(run)}")


def survey(
    run: opt.Run,
    out: Annotated[
        Path,
        Option("--out", "-o", metavar="STEM", help="Files: STEM.csv, STEM.html, STEM.key.json."),
    ] = Path("survey"),
    items: Annotated[int, Option(help="Maximum number of phenotypes, half of them made up.")] = 20,
    seed: opt.Seed = None,
    read: Annotated[list[Path] | None, Option(help="A sheet to score; may be repeated.")] = None,
) -> None:
    """Ask people which phenotypes are real: make a blinded survey, then score the answers.

    STEM.html shows phenotypes of RUN and an equal number of made-up phenotypes. Readers write their
    answers into a copy of STEM.csv. They must not see STEM.key.json, which contains the correct
    answers. All three files are made from the model and are as public as the model.

    With --read ANSWERS.csv, the command compares the answers with STEM.key.json. It prints each
    reader's accuracy and Cohen's kappa. It also prints the kappa of each pair of readers.
    """
    from dpfact_flower.evaluation.survey import agreement, read_survey, write_survey

    if read:
        readers = read_survey(run, out.with_name(f"{out.name}.key.json"), read)
        pairs = (agreement(one, two) for one, two in combinations(readers, 2))
        typer.echo("\n".join([*map(str, readers), *pairs]))
        return
    sheet = write_survey(run, out, items=items, seed=seed)
    typer.echo(f"{sheet.with_suffix('.html')}: the patterns; give it and {sheet} to each reader")
    typer.echo(f"{sheet.with_suffix('.key.json')}: which are real; keep this file unread")
