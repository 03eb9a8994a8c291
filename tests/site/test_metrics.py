"""The figures of a site for its own monitoring."""

import os
from datetime import datetime

import pytest

from dpfact_flower.privacy import account
from dpfact_flower.site.metrics import ANSWERING, site_gauges
from tests.site.federation import go_to, make_client, make_server, make_settings, rows_of


def test_figures_are_those_of_the_ledger(data, tmp_path):
    settings = make_settings(tmp_path, site="site-1", data_path="/nowhere")
    new = {each.name.removeprefix("site_"): each.values[0] for each in site_gauges(settings)}
    assert {labels["site"] for labels, _ in new.values()} == {"site-1"}
    assert {name for name, (_, value) in new.items() if value} == {"epsilon_left"}
    go_to(make_client(data, tmp_path), make_server(data), 2)
    (tmp_path / "state" / "site-1" / ".failed-attempts").write_bytes(b"+++")
    (tmp_path / "state" / ANSWERING).touch()
    os.utime(tmp_path / "state" / ANSWERING, (0, 0))
    rows = rows_of(tmp_path)
    spent = account([event for row in rows for event in row.events], 1e-5).headline.epsilon
    for most in (4.0, 0.5):
        gauges = site_gauges(make_settings(tmp_path, site="site-1", max_epsilon=most))
        values = {each.name.removeprefix("site_"): each.values[0][1] for each in gauges}
        assert values["epsilon_spent"] == spent
        assert values["epsilon_left"] == pytest.approx(max(most - spent, 0))
        assert values["charged_seconds"] == datetime.fromisoformat(rows[-1].recorded).timestamp()
        assert (values["releases"], values["failed_attempts"]) == (2, 3)
        assert values["answering_seconds"] > values["charged_seconds"]  # since 1970
