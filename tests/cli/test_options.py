"""What a command says while it works."""

import io

import pytest
from rich.console import Console

from dpfact_flower.cli import options


@pytest.mark.parametrize(("terminal", "hidden"), [(True, False), (True, True), (False, False)])
def test_a_terminal_shows_a_bar_with_the_time_left_unless_who_is_there_wants_the_log(
    terminal, hidden, monkeypatch
):
    drawn = io.StringIO()

    def console(**_):
        return Console(file=drawn, force_terminal=terminal, width=100, color_system=None)

    monkeypatch.setattr(options, "Console", console)
    with options.progress(hidden=hidden) as watch:
        watch("rounds", 0.0)
        watch("rounds", 0.5)
    shown = [text in drawn.getvalue() for text in ("rounds", "50%", "-:--:--")]
    assert shown == [terminal and not hidden] * 3
