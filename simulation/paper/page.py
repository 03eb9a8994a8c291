"""The page: every experiment's tables, figures and verdicts, written from the results alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from simulation.paper.datasets import DELTA
from simulation.paper.plan import Plan, reductions
from simulation.paper.report import Section, Table, save_figure
from simulation.paper.systems import described
from simulation.paper.verdicts import RULE, Verdict

COMMANDS = """\
With access to the full MIMIC-III or all of SynPUF, make a cohort and run the same on it:

    dpfact data mimic3 PATH/TO/mimic-iii --out data/mimic3-full
    python -m simulation.paper --cohort data/mimic3-full --out runs/paper-mimic3
    dpfact data synpuf PATH/TO/synpuf --claims outpatient --top 0x0 --out data/synpuf-full
    python -m simulation.paper --cohort data/synpuf-full --out runs/paper-synpuf

The commands are the same for the demos, on which they are tested; nobody here has run them on the
full data."""
"""For those who have the data that is not available here."""

_MADE_BY = {
    "quick": "make paper QUICK=1", "full": "make paper", "thorough": "make paper THOROUGH=1",
}  # fmt: skip


class State(NamedTuple):
    """How far a plan is.

    Attributes
    ----------
    finished, wanted : int
        Fits.
    seconds : float
        What the finished ones took, added up.
    code : str
        Digest of the code that computed them.
    """

    finished: int
    wanted: int
    seconds: float
    code: str


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
    own = folder / "evaluation.md"
    _write(own, folder, plan, sections, state)
    if page is not None:
        _write(page, page.parent / "images" / "evaluation", plan, sections, state)
    return page or own


def _write(page: Path, images: Path, plan: Plan, sections: Sequence[Section], state: State) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for part in section.parts:
            if isinstance(part, tuple):
                save_figure(part[2], images / part[0])
    relative = os.path.relpath(images, page.parent)
    lines = [
        *_head(plan, state), *_claims(sections),
        *(line for section in sections for line in _section(section, relative)),
        "## How the systems were run", "", described(), "",
        "## On the full data", "", COMMANDS, "",
    ]  # fmt: skip
    page.write_text("\n".join(lines), encoding="utf-8")


def _head(plan: Plan, state: State) -> list[str]:
    lines = [
        "# The paper's evaluation, and ours", "",
        f"Made by `{_MADE_BY.get(plan.name, plan.name)}` ({plan.name} variant); a rerun gives the "
        "same numbers, seconds aside. Numbers and verdicts are written from the results; typed by "
        "hand are explanations and the paper's own numbers. The paper is Ma et al., CIKM 2019; "
        "its data are not at hand here, and what stands for them is named in every table.", "",
        "**Noise is drawn from a seed here, so that runs repeat: seeded, so not private.** "
        f"Delta is {DELTA:g}. Every epsilon has its meaning beside it: the paper's is *claimed for "
        "an entry, not proven*; ours is *proven for a patient* (docs/explanation/proof.md), "
        "at the same (epsilon, delta).", "",
        f"The {state.finished} fits took {state.seconds / 60:.0f} minutes in all, added up, each "
        f"on one core of a machine that did other things too (code {state.code}).", "",
    ]  # fmt: skip
    if state.finished < state.wanted:
        lines += [f"**Not complete: {state.finished} of {state.wanted} fits are done.**", ""]
    less = reductions(plan)
    if less:
        lines += [f"Less than in the thorough variant: {'; '.join(less)}.", ""]
    if plan.missing():
        lines += [
            f"Not found here, so left out: {', '.join(plan.missing())} (set DPFACT_DATA to the "
            "folder of the open data).", ""
        ]  # fmt: skip
    return lines


def _claims(sections: Sequence[Section]) -> list[str]:
    verdicts: list[Verdict] = [verdict for section in sections for verdict in section.verdicts]
    if not verdicts:
        return []
    rows = [f"| {v.claim} | **{v.answer}** | {v.why} |" for v in verdicts]
    head = ["| claim | here | why |", "|---|---|---|"]
    return ["## The paper's claims", "", RULE, "", *head, *rows, ""]


def _section(section: Section, images: str) -> list[str]:
    lines = [f"## {section.title}", ""]
    if section.missing:
        lines += [f"**Not complete: {section.missing} fits of this section are missing.**", ""]
    for part in section.parts:
        if isinstance(part, Table):
            lines += [part.markdown(), ""] if part.shown else []
        elif isinstance(part, tuple):
            name, caption, _ = part
            lines += [f"![{caption}]({os.path.join(images, name)}.png)", ""]
        else:
            lines += [part, ""]
    return lines
