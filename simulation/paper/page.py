"""The page: every experiment's tables, figures and verdicts, written from the results alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from simulation.paper.datasets import DELTA
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table, Verdict, save_figure
from simulation.paper.systems import described

_COMMANDS = """\
With access to the full MIMIC-III or all of SynPUF, make a cohort and run the same on it:

    dpfact data mimic3 PATH/TO/mimic-iii --out data/mimic3-full
    python -m simulation.paper --cohort data/mimic3-full --out runs/paper-mimic3
    dpfact data synpuf PATH/TO/synpuf --claims outpatient --top 0x0 --out data/synpuf-full
    python -m simulation.paper --cohort data/synpuf-full --out runs/paper-synpuf

The commands are the same for the demos, on which they are tested; nobody here has run them on the
full data."""


class State(NamedTuple):
    """How far a plan is: finished jobs, all jobs, and the seconds that the finished ones took."""

    finished: int
    wanted: int
    seconds: float


def write(
    folder: Path, plan: Plan, sections: Sequence[Section], state: State, page: Path | None
) -> Path:
    """Write tables, figures and the page.

    Parameters
    ----------
    folder : Path
        Gets JSON, CSV, PNG and SVG, and ``evaluation.md``.
    plan : Plan
    sections : sequence of Section
    state : State
    page : Path or None
        Written too, with its figures in ``images/evaluation`` beside it.

    Returns
    -------
    Path
        Of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for part in section.parts:
            if isinstance(part, Table):
                part.write(folder)
            elif isinstance(part, tuple):
                save_figure(part[2], folder / part[0])
    own = folder / "evaluation.md"
    own.write_text(_text(plan, sections, state, ""), encoding="utf-8")
    if page is None:
        return own
    images = page.parent / "images" / "evaluation"
    images.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for part in section.parts:
            if isinstance(part, tuple):
                save_figure(part[2], images / part[0])
    relative = os.path.relpath(images, page.parent) + "/"
    page.write_text(_text(plan, sections, state, relative), encoding="utf-8")
    return page


def _text(plan: Plan, sections: Sequence[Section], state: State, images: str) -> str:
    command = "make paper" if plan.name == "full" else "make paper QUICK=1"
    finished, wanted, seconds = state
    lines = [
        "# The paper's evaluation, and ours", "",
        f"Made by `{command}` ({plan.name} variant); a rerun gives the same numbers, "
        "seconds aside. Nothing on this page is typed by hand but the paper's own numbers. The "
        "paper is Ma et al., CIKM 2019; its data are not at hand here, and what stands for them is "
        "named in every table.", "",
        "**Noise is drawn from a seed here, so that runs repeat: seeded, so not private.** "
        f"Delta is {DELTA:g}. Every epsilon has its meaning beside it: the paper's is *claimed for "
        "an entry, not proven*; ours is *proven for a patient* (docs/explanation/proof.md), "
        "at the same (epsilon, delta).", "",
    ]  # fmt: skip
    lines += [
        f"The {finished} fits took {seconds / 60:.0f} minutes, one after the other on one core of "
        "a machine that did other things too.", "",
    ]  # fmt: skip
    if finished < wanted:
        lines += [f"**Not complete: {finished} of {wanted} fits are done.**", ""]
    if plan.missing():
        lines += [
            f"Not found here, so left out: {', '.join(plan.missing())} (set DPFACT_DATA to the "
            "folder of the open data).", ""
        ]  # fmt: skip
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    if verdicts:
        lines += ["## The paper's claims", "", _verdicts(verdicts), ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for part in section.parts:
            if isinstance(part, Table):
                lines += [part.markdown(), ""] if part.shown else []
            elif isinstance(part, tuple):
                lines += [f"![{part[1]}]({images}{part[0]}.png)", ""]
            else:
                lines += [part, ""]
    lines += ["## How the systems were run", "", described(), ""]
    lines += ["## On the full data", "", _COMMANDS, ""]
    return "\n".join(lines)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = ["| claim | here | why |", "|---|---|---|"]
    rows += [f"| {v.claim} | **{v.answer}** | {v.why} |" for v in verdicts]
    return "\n".join(rows)
