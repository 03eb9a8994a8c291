"""What a command says while it works."""

import io

import pytest
from rich.console import Console

from dpfact_flower.cli import options


@pytest.fixture
def screen(monkeypatch):
    """What is drawn on a terminal of 100 columns."""
    drawn = io.StringIO()

    def console(**_):
        return Console(file=drawn, force_terminal=True, width=100, color_system=None)

    monkeypatch.setattr(options, "Console", console)
    return drawn


def report(**how):
    with options.progress(**how) as watch:
        watch("rounds", 0.0)
        watch("rounds", 0.5)


def test_each_piece_of_work_has_a_bar_with_the_time_left(screen):
    report()
    assert "rounds" in screen.getvalue()
    assert "50%" in screen.getvalue()
    assert "-:--:--" in screen.getvalue()


def test_who_wants_the_log_or_silence_gets_no_bars(screen):
    report(hidden=True)
    assert screen.getvalue() == ""


def test_a_file_gets_no_bars(capfd):
    report()
    assert capfd.readouterr() == ("", "")
