"""Write the page with verdicts, figures and links to the tables, from the results alone."""

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
These commands, tested only on demo data, repeat the evaluation on all of MIMIC-III and SynPUF:

    dpfact data mimic3 PATH/TO/mimic-iii --out data/mimic3-full
    python -m simulation.paper --cohort data/mimic3-full --out runs/paper-mimic3
    dpfact data synpuf PATH/TO/all-of-synpuf --claims outpatient --top 0x0 --out data/synpuf-full
    python -m simulation.paper --cohort data/synpuf-full --out runs/paper-synpuf"""
"""Commands for readers with access to the restricted data."""

_COMPARED = """\
The DPFact paper (Ma et al., CIKM 2019) compares DPFact with CP-ALS, SGD and TRIP in accuracy,
traffic, prediction and privacy. The paper's data are not available, so this page repeats the
comparison on synthetic and open data.

- **CP-ALS** and **SGD, centralised** use all patients' data in one place. **TRIP** is federated and
  adds no noise.
- **DPFact (P-SGD)** is the paper's method, without noise (*w/o DP*) or with *the paper's noise*.
  The paper claims an epsilon per entry of the tensor, but the proof does not hold.
- **DPFact (exact)** minimises the paper's objective with this package's solver and adds no noise.
- **DPFact, patient mode (ours)** has a [proven](explanation/proof.md) epsilon for each patient."""
"""Introduction of the systems."""
_HEADLINED = (
    SYSTEMS["paper"].title, SYSTEMS["paper-small"].title, SYSTEMS["patient"].title,
    f"Patient mode against {SYSTEMS['raw-codes'].title}",
)  # fmt: skip
"""The page shows the lines of cases that begin with these names; verdicts.csv has all lines."""

_MADE_BY = {
    "quick": "make paper QUICK=1", "full": "make paper", "thorough": "make paper THOROUGH=1",
}  # fmt: skip


class State(NamedTuple):
    """Progress of a plan: numbers of fits, their seconds so far, and the digest of their code."""

    finished: int
    wanted: int
    seconds: float
    code: str


def write(
    folder: Path, plan: Plan, sections: Sequence[Section], state: State, page: Path | None
) -> Path:
    """Write tables (JSON, CSV), figures (PNG, SVG) and ``evaluation.md`` to a folder.

    If `page` is given, write the page there too. The page's figures go to the folder
    ``images/evaluation`` next to the page, and CSV files to a folder with the page's name. Return
    the path of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = [*(table for section in sections for table in section.tables), *_own(sections)]
    for table in tables:
        table.write(folder)
    own = folder / "evaluation.md"
    _write(own, folder, folder, plan, sections, state)
    if page is None:
        return own
    beside = page.with_suffix("")
    beside.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.write_rounded(beside)
    _write(page, beside, page.parent / "images" / "evaluation", plan, sections, state)
    return page


def _own(sections: Sequence[Section]) -> list[Table]:
    """Return the two tables about the whole page: the verdicts and the systems' settings."""
    cases = [
        {"claim": verdict.claim, "verdict": verdict.answer, "cases": line}
        for verdict in _verdicts(sections)
        for line in verdict.why.split("<br>")
    ]
    settings = [{"system": system, "settings": how} for system, how in described().items()]
    return [Table("verdicts", cases), Table("settings", settings)]


def _write(
    page: Path, tables: Path, images: Path, plan: Plan, sections: Sequence[Section], state: State
) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for name, _, figure in section.figures:
            save_figure(figure, images / name)
    files, pictures = (os.path.relpath(folder, page.parent) for folder in (tables, images))
    lines = [
        "# The paper's evaluation, repeated", "", _COMPARED, "",
        *_verdict_lines(sections, files),
        *(line for section in sections for line in _section(section, files, pictures)),
        *_made(plan, state, files),
        "## On the full data", "", COMMANDS, "",
    ]  # fmt: skip
    page.write_text("\n".join(lines), encoding="utf-8")


def _verdict_lines(sections: Sequence[Section], files: str) -> list[str]:
    """Return the page's lines with the verdicts on all claims, and the sections' summary tables."""
    lines = ["## Verdicts", ""]
    verdicts = _verdicts(sections)
    if verdicts:
        rows = [f"| {v.claim} | **{v.answer}** | {_brief(v.why)} |" for v in verdicts]
        head = ["| the paper's claim | verdict | cases |", "|---|---|---|"]
        lines += [f"{RULE} {_link('verdicts', files)} lists all cases.", "", *head, *rows, ""]
    for section in sections:
        if section.summary is not None:
            lead, table = section.summary
            lines += [lead, "", table.markdown(), ""]
    return lines


def _brief(why: str) -> str:
    """Return the lines that begin with a name in `_HEADLINED`, or all lines if none does."""
    lines = why.split("<br>")
    own = [line for line in lines if line.startswith(tuple(f"{name}: " for name in _HEADLINED))]
    return "<br>".join(own) or why


def _verdicts(sections: Sequence[Section]) -> list[Verdict]:
    return [verdict for section in sections for verdict in section.verdicts]


def _made(plan: Plan, state: State, files: str) -> list[str]:
    made = _MADE_BY.get(plan.name, plan.name) + f" STARTS={plan.starts}" * (plan.starts > 1)
    lines = [
        "## How this page was made", "",
        f"`{made}` wrote this page and its CSV files from {state.finished} fits "
        f"({state.seconds / 60:.0f} minutes on one core; code hash {state.code}). "
        f"{_link('settings', files)} lists every system's settings. "
        f"Delta is {DELTA:g}, as in the paper. The noise has a fixed seed and therefore "
        "protects no patient.", "",
    ]  # fmt: skip
    if state.finished < state.wanted:
        lines += [f"**Not complete: {state.finished} of {state.wanted} fits are done.**", ""]
    less = reductions(plan)
    if less:
        lines += [f"Unlike the output of `{_MADE_BY['thorough']}`, this page has:", ""]
        lines += [*(f"- {each}" for each in less), ""]
    if plan.missing():
        lines += [
            f"These data sets were not found and are left out: {', '.join(plan.missing())}. Set "
            "DPFACT_DATA to the folder of the open data.", ""
        ]  # fmt: skip
    return lines


def _section(section: Section, files: str, images: str) -> list[str]:
    lines = [f"## {section.title}", ""]
    if section.missing:
        lines += [f"**Not complete: {section.missing} fits of this section are missing.**", ""]
    lines += [section.text, ""]
    for name, caption, _ in section.figures:
        lines += [f"![{caption}]({os.path.join(images, name)}.png)", ""]
    links = [f"- {_link(t.name, files)}: {t.about}" for t in section.tables if t.rows]
    return [*lines, *links, ""] if links else lines


def _link(name: str, files: str) -> str:
    return f"[{name}.csv]({os.path.join(files, name)}.csv)"
