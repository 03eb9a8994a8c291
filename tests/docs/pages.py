"""The commands and Python blocks in README and docs, for the tests."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from dpfact_flower.data.synthetic import PRESETS

ROOT = Path(__file__).parents[2]
PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALL = replace(PRESETS["demo"], patients=300, modes="procedures:20:2.8,diagnoses:30:6")
"""Number of patients in place of the demo's 6,000."""
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n)+")
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ *)*(?:\. |(?:\S*/)?(?:cd|cp|curl|docker|dpfact|export|flower-\w+|flwr|git|make"
    r"|mkdir|openssl|pip|printf|python3?|rm|ssh-keygen|sudo|systemctl|uv)\b|$|#)"
)
"""Beginning of a line in a shell block. Other indented blocks are files, formulas and tables."""


@dataclass(frozen=True)
class Unit:
    """A unit that a reader would run: one command, or one block of Python.

    `page` is a path in the repository, and `line` the first line of the block. In `text`, continued
    lines of a command are joined.
    """

    page: str
    line: int
    python: bool
    text: str


def units(path: Path) -> list[Unit]:
    """Return all units of a page, in order."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    found = [
        (match.start(), match[1] == "python", match[2])
        for match in _FENCE.finditer(text)
        if match[1] in ("python", "sh", "shell", "bash", "console")
    ]
    blank = _FENCE.sub(lambda match: re.sub(r"[^\n]", "-", match[0]), text)
    found += [
        (match.start(), False, re.sub(r"^    ", "", match[0], flags=re.MULTILINE))
        for match in _INDENTED.finditer(blank)
        if _COMMAND.match(match[0].strip())
    ]
    return [
        Unit(name, text[:start].count("\n") + 1, python, part)
        for start, python, block in sorted(found)
        for part in ([block] if python else commands(block))
    ]


def commands(block: str) -> list[str]:
    """Return a shell block's commands. Continued lines, loops and long strings count as one."""
    found, rest = [], ""
    for line in re.sub(r"(?:^| {2,})#.*", "", block, flags=re.MULTILINE).splitlines():
        rest += line.lstrip() if rest.endswith(" ") else line
        if rest.endswith("\\"):
            rest = rest[:-1].rstrip() + " "
        elif rest.count('"') % 2 or rest.count("'") % 2:
            rest += "\n"
        elif rest.endswith("; do"):
            rest += " "
        else:
            found += [rest.strip()] if rest.strip() else []
            rest = ""
    return found
