"""Flower's commands in the docs: telemetry must be switched off before each of them."""

import re
from pathlib import Path

import pytest

from dpfact_flower.machine.flower import QUIET

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "simulation" / "dpfact-app" / "README.md",
         *sorted((ROOT / "docs").rglob("*.md"))]  # fmt: skip
COMMAND = re.compile(
    r"^    (?:.*=\S*/)?(?:flwr|flower-\w+|dpfact site connect|dpfact superlink) \S", re.MULTILINE
)


def faults(text: str) -> list[str]:
    """Return Flower's commands before which telemetry is not switched off."""
    quiet = [f"{key}={value}" for key, value in QUIET.items()]
    found = []
    for command in COMMAND.finditer(text):
        before = text[: command.start()].splitlines()
        exported = [line for line in before if line.startswith("    export ")]
        if not any(all(each in line for each in quiet) for line in exported):
            found.append(command[0].strip())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_telemetry_is_off_before_a_command_is_typed(page):
    assert faults(page.read_text(encoding="utf-8")) == []
