"""The page: every experiment's tables, figures and verdicts, written from the results alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from simulation.paper.datasets import DELTA
from simulation.paper.plan import Plan, reductions
from simulation.paper.report import Section, Table, save_figure
from simulation.paper.systems import SYSTEMS, described
from simulation.paper.verdicts import RULE, Verdict

COMMANDS = """\
With access to the full MIMIC-III or all of SynPUF, make a cohort and run the same on it:

    dpfact data mimic3 PATH/TO/mimic-iii --out data/mimic3-full
    python -m simulation.paper --cohort data/mimic3-full --out runs/paper-mimic3
    dpfact data synpuf PATH/TO/all-of-synpuf --claims outpatient --top 0x0 --out data/synpuf-full
    python -m simulation.paper --cohort data/synpuf-full --out runs/paper-synpuf

The commands are the same for the demos, on which they are tested; nobody here has run them on the
full data."""
"""For those who have the data that is not available here."""

_COMPARED = """\
Ma et al. (CIKM 2019) hold DPFact against CP-ALS, SGD and TRIP, by accuracy, traffic, prediction and
privacy. Here is the same, on data that anybody can have; the paper's own are not at hand, and what
stands for them is named in [every table](#the-data).

- **CP-ALS** and **SGD, centralised**: all patients in one place. **TRIP**: federated, no noise.
- **DPFact (P-SGD)**: the paper's method; *w/o DP*, or with *the paper's noise*, whose epsilon is
  claimed for an entry and not proven.
- **DPFact (exact)**: the same objective by this package's solver, without noise; with the l2,1 term
  or without.
- **DPFact, patient mode (ours)**: what this package is for. Its epsilon is
  [proven for a patient](explanation/proof.md), and is the same number at the same delta."""
"""What a reader must know of the systems."""
_HEADLINED = (
    SYSTEMS["paper"].title, SYSTEMS["patient"].title,
    f"Patient mode against {SYSTEMS['raw-codes'].title}",
)  # fmt: skip
"""Whose cases the top of the page has."""
_FOLDED = 8
"""Rows from which a table is folded."""

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
        "# The paper's evaluation, and ours", "", _COMPARED, "",
        *_digest(plan, state), *_found(sections),
        *(line for section in sections for line in _section(section, relative)),
        *_cases(sections),
        "## How the systems were run", "", described(), "",
        *_made(plan, state),
        "## On the full data", "", COMMANDS, "",
    ]  # fmt: skip
    page.write_text("\n".join(lines), encoding="utf-8")


def _digest(plan: Plan, state: State) -> list[str]:
    lines = [
        f"Figures are of the code with digest `{state.code}`, made by "
        f"`{_MADE_BY.get(plan.name, plan.name)}` ([how](#how-this-page-was-made)).", "",
    ]  # fmt: skip
    if state.finished < state.wanted:
        lines += [f"**Not complete: {state.finished} of {state.wanted} fits are done.**", ""]
    return lines


def _found(sections: Sequence[Section]) -> list[str]:
    """What came out: the claims, and the tables that sum up a section."""
    lines = ["## What came out", ""]
    verdicts = _verdicts(sections)
    if verdicts:
        rows = [f"| {v.claim} | **{v.answer}** | {_brief(v.why)} |" for v in verdicts]
        head = ["| the paper's claim | here | cases ([all](#all-cases)) |", "|---|---|---|"]
        said = "A case supports a claim where the 95 % interval lies on the claimed side, and "
        lines += [said + "contradicts it where it lies on the other.", "", *head, *rows, ""]
    for section in sections:
        if section.summary is not None:
            lead, table = section.summary
            lines += [lead, "", table.markdown(), ""]
    return lines


def _cases(sections: Sequence[Section]) -> list[str]:
    verdicts = _verdicts(sections)
    if not verdicts:
        return []
    rows = [f"| {v.claim} | **{v.answer}** | {v.why} |" for v in verdicts]
    table = ["| claim | here | why |", "|---|---|---|", *rows]
    return ["## All cases", "", RULE, "", *_fold(f"{len(rows)} claims", table)]


def _brief(why: str) -> str:
    """Its lines about what a reader comes for; all of it where there are none."""
    lines = why.split("<br>")
    own = [line for line in lines if line.startswith(tuple(f"{name}: " for name in _HEADLINED))]
    return "<br>".join(own) or why


def _verdicts(sections: Sequence[Section]) -> list[Verdict]:
    return [verdict for section in sections for verdict in section.verdicts]


def _made(plan: Plan, state: State) -> list[str]:
    lines = [
        "## How this page was made", "",
        f"`{_MADE_BY.get(plan.name, plan.name)}` ({plan.name} variant). A rerun gives the "
        "same numbers, seconds aside. Numbers and answers are written from the results; typed by "
        "hand are explanations and the paper's own numbers.", "",
        "**Noise is drawn from a seed here, so that runs repeat: seeded, so not private.** "
        f"Delta is {DELTA:g}.", "",
        f"The {state.finished} fits took {state.seconds / 60:.0f} minutes in all, added up, each "
        f"on one core of a machine that did other things too (code {state.code}).", "",
    ]  # fmt: skip
    less = reductions(plan)
    if less:
        lines += [f"Less than in the thorough variant: {'; '.join(less)}.", ""]
    if plan.missing():
        lines += [
            f"Not found here, so left out: {', '.join(plan.missing())} (set DPFACT_DATA to the "
            "folder of the open data).", ""
        ]  # fmt: skip
    return lines


def _section(section: Section, images: str) -> list[str]:
    lines = [f"## {section.title}", ""]
    if section.missing:
        lines += [f"**Not complete: {section.missing} fits of this section are missing.**", ""]
    for part in section.parts:
        if isinstance(part, Table):
            lines += _folded(part) if part.shown else []
        elif isinstance(part, tuple):
            name, caption, _ = part
            lines += [f"![{caption}]({os.path.join(images, name)}.png)", ""]
        else:
            lines += [part, ""]
    return lines


def _folded(table: Table) -> list[str]:
    """A table, to be unfolded if it is long."""
    lines, count = table.markdown().splitlines(), len(table.rows)
    return _fold(f"Table, {count} rows", lines) if count >= _FOLDED else [*lines, ""]


def _fold(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]
