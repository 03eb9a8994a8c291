"""Long-term keys as files and lines, and a job's terms."""

import hashlib
from dataclasses import replace
from itertools import product

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.errors import MessageError, SettingsError
from dpfact_flower.privacy.patient.sharing import sharing_of
from dpfact_flower.privacy.secure_sum import keys
from dpfact_flower.privacy.secure_sum.keys import Member, Question, Terms, context_of, hashed
from dpfact_flower.settings import PrivacySettings


def pem(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_signature_is_rfc_8032s():
    """Use section 7.1, test 2, with a key read from a file."""
    seed = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    key = keys.read_signing_key(pem(Ed25519PrivateKey.from_private_bytes(seed)))
    text, public = keys.public_text(key), keys.read_public_key(f" {keys.public_text(key)}\n")
    assert text == "ed25519:PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw="
    assert public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert key.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


def test_keys_differ_and_so_do_their_fingerprints():
    texts = [keys.public_text(keys.read_signing_key(keys.new_signing_key())) for _ in range(3)]
    marks = {keys.fingerprint(keys.read_public_key(text)) for text in texts}
    assert len(marks) == 3
    assert all(len(mark) == 39 and len(mark.split()) == 8 for mark in marks)
    assert keys.fingerprint(b"") == "e3b0 c442 98fc 1c14 9afb f4c8 996f b924"


@pytest.mark.parametrize("content", [
    b"", b"no key", pem(X25519PrivateKey.generate()), keys.new_signing_key()[:-40],
], ids=["nothing", "no key", "of X25519", "cut off"])  # fmt: skip
def test_another_file_is_no_key(content):
    with pytest.raises(SettingsError, match="need an Ed25519 private key in PEM"):
        keys.read_signing_key(content)


@pytest.mark.parametrize("text", [
    "", "ed25519:A", "ed25519:AAAA", f"ed25519:{44 * 'A'}", f"ed25519:!{43 * 'A'}=",
    f"rsa:{43 * 'A'}=", f"ed25518:{43 * 'A'}=",
])  # fmt: skip
def test_another_line_is_no_public_key(text):
    with pytest.raises(SettingsError, match="need ed25519: and 44"):
        keys.read_public_key(text)


def terms(sites, colluding, dropouts):
    names = tuple(f"site-{number:02d}" for number in range(sites))
    return Terms("job", "settings", names, colluding, dropouts)


@pytest.mark.parametrize(
    ("sites", "colluding", "dropouts", "threshold"),
    [(3, 1, 0, 3), (6, 1, 1, 4), (20, 2, 2, 12), (50, 5, 5, 28)],
)
def test_who_must_open(sites, colluding, dropouts, threshold):
    assert terms(sites, colluding, dropouts).threshold == threshold


def test_terms_are_refused_exactly_where_the_proof_ends():
    """The terms need 2 D < H - T and m >= 2. Then enough sites open exactly one attempt.

    An attempt is opened by all its honest members, or by threshold - T honest sites.
    """
    for sites, colluding, dropouts in product(range(3, 14), range(1, 4), range(6)):
        proven = 2 * dropouts < sites - colluding and sites - colluding - dropouts >= 2
        asked = PrivacySettings(
            secure_sums=True, secure_colluding=colluding, secure_dropouts=dropouts, secure_slots=1
        )
        if not proven:
            with pytest.raises(SettingsError, match="fewer lost than left"):
                sharing_of(asked, sites)
            continue
        threshold = sharing_of(asked, sites).terms("job", "", "a" * sites).threshold
        honest = sites - colluding
        assert threshold <= sites - dropouts
        assert 2 * (threshold - colluding) > honest
        assert honest - (sites - dropouts - colluding) < threshold - colluding


PARTS = st.lists(st.binary(max_size=9) | st.text("abc", max_size=4), max_size=4)


@given(PARTS, PARTS)
def test_no_two_lists_have_one_hash(one, other):
    def raw(parts):
        return [part if isinstance(part, bytes) else part.encode() for part in parts]

    assert (hashed(*one) == hashed(*other)) == (raw(one) == raw(other))


def test_a_hash_covers_the_version_and_each_parts_length():
    parts = b"dpfact secure sum 1", b"site", b"\1" + bytes(7)
    text = b"".join(bytes([len(part)]) + bytes(7) + part for part in parts)
    assert hashed("site", 1) == hashlib.sha256(text).digest()


def test_the_context_depends_on_everything_and_on_nothing_else():
    agreed = terms(4, 1, 1)
    members = tuple(Member(name, bytes([n]) * 32, bytes(64)) for n, name in enumerate(agreed.sites))
    question = Question(1, b"request", 1, 4, members)
    key = replace(members[0], key=bytes([9]) * 32)
    changed = [
        *(replace(question, **{name: 2}) for name in ("round", "attempt", "width")),
        replace(question, request=b"requests"), replace(question, members=members[1:]),
        replace(question, members=(key, *members[1:])), replace(question, members=members[::-1]),
    ]  # fmt: skip
    others = [
        replace(agreed, job="jobs"), replace(agreed, settings=""), replace(agreed, dropouts=0),
        replace(agreed, colluding=0), replace(agreed, sites=(*agreed.sites, "site-05")),
    ]  # fmt: skip
    found = {context_of(agreed, each) for each in (question, *changed)}
    found |= {context_of(each, question) for each in others}
    assert len(found) == 1 + len(changed) + len(others)


@pytest.mark.parametrize(("key", "signature"), [(31, 64), (33, 64), (32, 63), (32, 65)])
def test_members_of_other_lengths(key, signature):
    with pytest.raises(MessageError, match="member 'a': need 32 bytes"):
        Member("a", bytes(key), bytes(signature))
