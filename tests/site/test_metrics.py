"""Refusals are counted for the hospital, and do not change what a server sees."""

import os

import pytest

from dpfact_flower.client_app import RoundRefusedError
from dpfact_flower.privacy.ledger import LEDGER
from dpfact_flower.site.disclosure import PUBLIC_CODES
from dpfact_flower.site.metrics import count_refusal, refusals
from dpfact_flower.wire.protocol import ROUND_TIMEOUT
from tests.site.federation import make_client, make_server


def test_whatever_is_refused_is_counted_by_the_code_that_leaves(data, tmp_path):
    server, client = make_server(data), make_client(data, tmp_path)
    first, folder = server.request(1).to_wire(), tmp_path / "state" / "site-1"
    other = (first[0], {**first[1], "protocol": 99})
    with pytest.raises(RoundRefusedError):
        client.fit(list(first[0]), other[1])
    assert not folder.exists()  # nothing is stored for a site that has not answered
    client.fit(*server.request(1).to_wire())
    closed = make_client(data, tmp_path, allow_privacy="paper")
    for ask, (arrays, config), code in (
        (closed.fit, first, "privacy-refused"),
        (client.preflight, (first[0], {**other[1], ROUND_TIMEOUT: 60.0}), "message"),
        (client.fit, other, "message"),
    ):
        with pytest.raises(RoundRefusedError, match=f"dpfact:{code} "):
            ask(list(arrays), config)
        assert code in PUBLIC_CODES
    # A preflight's answer is not counted.
    assert refusals(folder) == {"privacy-refused": 1, "message": 1}


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"late": "x"}', b"\xff" * 9, b"[" * 9000])
def test_a_damaged_count_begins_again(tmp_path, content):
    (tmp_path / LEDGER).touch()
    (tmp_path / ".refusals.json").write_bytes(content)
    count_refusal(tmp_path, "late")
    assert refusals(tmp_path) == {"late": 1}


def test_what_cannot_be_counted_is_not_counted(tmp_path):
    (tmp_path / LEDGER).touch()
    count_refusal(tmp_path, "state")  # the fault is in the folder itself
    tmp_path.chmod(0o777)  # other users may have prepared it
    count_refusal(tmp_path, "late")
    assert os.listdir(tmp_path) == [LEDGER]
