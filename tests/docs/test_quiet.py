"""Flower's commands in the docs: telemetry must be switched off before each of them."""

import re

import pytest

from dpfact_flower.machine.flower import QUIET
from tests.docs.pages import PATHS, ROOT

PAGES = [*PATHS, ROOT / "simulation" / "dpfact-app" / "README.md"]
COMMAND = re.compile(
    r"^    (?:.*=\S*/)?(?:flwr|flower-\w+|dpfact site connect|dpfact superlink) \S", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_telemetry_is_off_before_a_command_is_typed(page):
    text, quiet = page.read_text(encoding="utf-8"), [f"{key}={QUIET[key]}" for key in QUIET]
    for command in COMMAND.finditer(text):
        before = text[: command.start()].splitlines()
        exported = [line for line in before if line.startswith("    export ")]
        assert any(all(each in line for each in quiet) for line in exported), command[0].strip()
