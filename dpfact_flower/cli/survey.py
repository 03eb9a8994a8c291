"""`dpfact survey`: a test of whether people can tell a run's phenotypes from made-up phenotypes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer

# Imports are inside the commands, because `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415


def survey(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="STEM", help="Files: STEM.csv, STEM.html, STEM.key.json."
        ),
    ] = Path("survey"),
    items: Annotated[int, typer.Option(help="Patterns on the page, half of them made up.")] = 20,
    seed: Annotated[
        int | None, typer.Option(help="Of the choice and the order (default: none).", min=0)
    ] = None,
    read: Annotated[
        list[Path] | None, typer.Option(help="A filled sheet to score; may be repeated.")
    ] = None,
) -> None:
    """Ask people which phenotypes are real: make a blinded survey, and score the answers.

    STEM.html shows phenotypes of RUN and as many made-up phenotypes. People write their answers
    into a copy of STEM.csv. STEM.key.json says which patterns are real: keep it unread. All three
    files come from the model and are as public as the model.

    --read ANSWERS.csv gives each reader's accuracy and Cohen's kappa, and the kappa of each pair of
    readers. --read needs STEM.key.json.
    """
    from dpfact_flower.evaluation.survey import agreement, read_survey, write_survey

    if read:
        readers = read_survey(run, out.with_name(f"{out.name}.key.json"), read)
        for reader in readers:
            typer.echo(str(reader))
        for one, two in combinations(readers, 2):
            typer.echo(agreement(one, two))
        return
    sheet = write_survey(run, out, items=items, seed=seed)
    typer.echo(f"{sheet.with_suffix('.html')}: the patterns; give it and {sheet} to each reader")
    typer.echo(f"{sheet.with_suffix('.key.json')}: which are real; keep it, unread")
