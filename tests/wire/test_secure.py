import json

import pytest

from dpfact_flower.errors import MessageError
from dpfact_flower.privacy.secure_sum.keys import Member
from dpfact_flower.wire.secure import SecureStage, read_sealed, sealed_text

MEMBERS = tuple(Member(f"site-{n}", bytes([n]) * 32, bytes(64)) for n in range(3))
STAGE = SecureStage("open", 2, MEMBERS, ("site-0", "site-1"), {"site-1": b"\xff" * 48})
BAD_KEYS = {"stage": "keys", "members": [], "sealed": {}}
BAD = (
    {"stage": "x"}, {"attempt": True}, {"attempt": -1}, {"attempt": 2**63}, {"attempt": 1e999},
    {"members": []}, {"members": [["site-0", "", ""]]}, {"asked": ["site-9"]}, {"sealed": []},
    {"asked": ["site-1", "site-0"]}, {"asked": ["site-0"] * 2}, {"sealed": {"../x\n" * 200: "AA"}},
    {"sealed": {"site-1": "*"}}, {"sealed": {"site-1": "A" * 5000}},
    {**BAD_KEYS, "asked": ["\n"]}, {**BAD_KEYS, "asked": [f"{n:04}" for n in range(1001)]},
)  # fmt: skip


@pytest.mark.parametrize("text", [
    "", "NaN", "{}", "[" * 100_000, *(json.dumps(json.loads(STAGE.to_text()) | own) for own in BAD),
])  # fmt: skip
def test_a_damaged_stage_is_refused_in_one_short_line(text):
    assert SecureStage.from_text(STAGE.to_text()) == STAGE
    with pytest.raises(MessageError, match=r"^secure sum: damaged") as caught:
        SecureStage.from_text(text)
    assert len(str(caught.value)) <= 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", [b"\xff", b"{}", b'{"sealed": {"site-1": "%s"}}' % (b"A" * 5000)])
def test_damaged_shares_are_refused(text):
    good = sealed_text(STAGE.sealed)
    assert read_sealed(good, ["site-1"]) == STAGE.sealed
    for content, names in (text, ["site-1"]), (good, ["site-0"]):
        with pytest.raises(MessageError, match=r"^secure sum: damaged"):
            read_sealed(content, names)
