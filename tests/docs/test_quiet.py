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
STARTED = ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK")


def faults(text: str) -> list[str]:
    """Return Flower's commands before which telemetry is not switched off."""
    found = []
    for command in COMMAND.finditer(text):
        before = text[: command.start()]
        typed = [f"{key}={value}" for key, value in QUIET.items()]
        exported = [line for line in before.splitlines() if line.startswith("    export ")]
        unit = before.rpartition("[Service]")[2] if "ExecStart" in command[0] else ""
        if not any(all(each in line for each in typed) for line in exported) and not all(
            f"{key}={QUIET[key]}" in unit for key in STARTED
        ):
            found.append(command[0].strip())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_telemetry_is_off_before_a_command_is_typed(page):
    assert faults(page.read_text(encoding="utf-8")) == []


def test_a_command_before_it_is_off_is_noticed():
    page = (ROOT / "simulation" / "dpfact-app" / "README.md").read_text(encoding="utf-8")
    assert COMMAND.findall(page)
    assert faults(page.replace("FLWR_TELEMETRY_ENABLED=0", "FLWR_TELEMETRY_ENABLED=1"))
    unit = "    [Service]\n    ExecStart=/opt/bin/flower-supernode --x\n"
    assert len(faults(unit)) == 1
