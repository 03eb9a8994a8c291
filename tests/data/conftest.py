"""Fixtures of the readers' tests: hand-made tables."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dpfact_flower.data.clinical_events import Options, reading


@pytest.fixture(scope="module")
def connection():
    """One DuckDB connection per module, whose tables the tests replace."""
    with reading(Options(), []) as opened:
        yield opened


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a text file into the test's folder, byte for byte, and return its path."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write_file
