"""The hospital's own file of settings, and its figures for its own monitoring."""

import os
import shutil
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from dpfact_flower.errors import SettingsError, StateError
from dpfact_flower.privacy import account
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.site import hospital
from dpfact_flower.site.hospital import ANSWERING, answering_seconds, site_metrics
from tests.ledgers import charge
from tests.site.federation import go_to, make_client, make_server, make_settings, rows_of

WHOLE = 'site = "north"\ndata-path = "/d/n.npz"\nstate-dir = "/d/state"\nmax-epsilon = 4.0\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WHOLE + "max-epsilom = 9.0", "max-epsilom"),
        (WHOLE + "partition-id = 1\nnum-partitions = 2", "partition-id"),
        (WHOLE.replace('"/d/n.npz"', '"n.npz"'), "data-path must be set, to an absolute path"),
        ('site = "north"', "data-path must be set, to an absolute path"),
        (WHOLE + "[more]\nx = 1", "more"),
        (WHOLE + 'max-rank = "x"', "max-rank"),
        ("site = ", r"not readable as TOML: .*\(at end of document\)"),
        (None, r"north\.toml: No such file"),
    ],
)
def test_what_is_not_whole_or_not_a_setting_is_refused(tmp_path, text, says):
    path = tmp_path / "north.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=says):
        hospital.read_site_settings(path)


def test_figures_are_those_of_the_ledger(data, tmp_path):
    settings = make_settings(tmp_path, site="site-1", data_path="/nowhere")
    assert {name for name, value in site_metrics(settings).items() if value} == {"epsilon_left"}
    go_to(make_client(data, tmp_path), make_server(data), 2)
    with Ledger(tmp_path / "state" / "site-1", create=False) as ledger:
        ledger._opened -= timedelta(days=1)  # the clock was set back
        charge(ledger, "later", 1, "patient")
    (tmp_path / "state" / "site-1" / ".failed-attempts").write_bytes(b"+++")
    (tmp_path / "state" / ANSWERING).touch()
    assert answering_seconds(tmp_path / "nowhere") == 0
    os.utime(tmp_path / "state" / ANSWERING, (2**31 - 1, 2**31 - 1))  # the clock was set back
    assert answering_seconds(tmp_path / "state") == 0
    os.utime(tmp_path / "state" / ANSWERING, (0, 0))
    rows = rows_of(tmp_path)
    spent = account([event for row in rows for event in row.events], 1e-5).headline.epsilon
    for most in (4.0, 0.5):
        values = site_metrics(replace(settings, max_epsilon=most, max_epsilon_alone=most + 1))
        assert values["epsilon_spent"] == values["epsilon_alone_spent"] == spent
        assert values["epsilon_left"] == pytest.approx(max(most - spent, 0))
        assert values["epsilon_alone_left"] == pytest.approx(max(most + 1 - spent, 0))
        assert values["last_charge"] == datetime.fromisoformat(rows[-1].recorded).timestamp()
        assert (values["releases"], values["failed_attempts"]) == (3, 3)
        assert values["answering_seconds"] > values["last_charge"]  # since 1970
    with Ledger(tmp_path / "state" / "site-1", create=False) as ledger:
        charge(ledger, "open", 1)
    values = site_metrics(replace(settings, max_epsilon=4.0, max_epsilon_alone=9.0))
    assert values["epsilon_spent"] == spent
    assert values["epsilon_left"] == values["epsilon_alone_left"] == 0  # the site refuses all noise
    (ledger_file := tmp_path / "state" / "site-1" / LEDGER).unlink()
    with pytest.raises(StateError, match="there is no ledger here"):
        site_metrics(settings)
    shutil.rmtree(ledger_file.parent)
    ledger_file.parent.mkdir()
    ledger_file.with_name(f"{LEDGER}-LACKS-ROUNDS.txt").touch()
    with pytest.raises(StateError, match="answers that the ledger does not have"):
        site_metrics(settings)
