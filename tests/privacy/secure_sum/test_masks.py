"""Known answers of the primitives, the sent bits of a word, and shares of a seed."""

import hmac
import math
import os
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.errors import PrivacyRefusedError
from dpfact_flower.privacy.secure_sum import masks
from dpfact_flower.privacy.secure_sum.keys import hashed


def test_the_keystream_is_rfc_8439s():
    """Use appendix A.1, test vectors 1 and 2: key and nonce 0, blocks 0 and 1."""
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    masks.mask(words := np.zeros(16, np.uint64), [bytes(32)], [])
    assert words.astype("<u8").tobytes() == expected


def by_the_rfc(secret, salt, info, length):
    """Compute HKDF-SHA256 as written in RFC 5869."""
    random = hmac.digest(salt, secret, "sha256")
    block, made = b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(random, block + info + bytes([number]), "sha256")
        made += block
    return made[:length]


def test_derived_keys_are_rfc_5869s():
    """The RFC's test case 1 checks the function above, which then checks ours."""
    info = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9")
    assert by_the_rfc(b"\x0b" * 22, bytes(range(13)), info, 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    found = masks.derived(b"secret", b"context", "mask", "a", "b")
    assert found == by_the_rfc(b"secret", b"context", hashed("mask", "a", "b"), 32)


def test_what_two_agree_on_is_rfc_7748s():
    """Use section 6.1."""
    alice, bob, secret = map(bytes.fromhex, (
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
    ))  # fmt: skip
    private = X25519PrivateKey.from_private_bytes(alice)
    public = X25519PrivateKey.from_private_bytes(bob).public_key().public_bytes_raw()
    assert masks.agreed(private, public) == secret
    for low_order in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(PrivacyRefusedError, match="low order"):
            masks.agreed(private, low_order)


def test_every_purpose_site_and_context_has_its_own_key():
    purposes = [("mask", "a", "b"), ("mask", "ab"), ("share", "a", "b"), ("share", "b", "a")]
    keys = {masks.derived(b"s", context, *p) for context in (b"1", b"2") for p in purposes}
    assert len(keys) == 8


def keystream(key, count):
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8")


KEYS = st.lists(st.binary(min_size=32, max_size=32), max_size=3)


@given(st.integers(1, 3 * masks._BLOCK), KEYS, KEYS)
def test_masks_are_sums_of_keystreams(count, added, subtracted):
    words = np.arange(count, dtype=np.uint64)
    masks.mask(words, added, subtracted)
    total = np.arange(count, dtype=np.uint64)
    for key in added:
        total += keystream(key, count)
    for key in subtracted:
        total -= keystream(key, count)
    assert np.array_equal(words, total)


@pytest.mark.parametrize("width", range(1, 7))
@pytest.mark.parametrize("sites", [1, 2, 50])
def test_sums_of_the_bits_that_travel(width, sites):
    rng = np.random.default_rng(width)
    vectors = [rng.integers(0, 2**64, 300, dtype=np.uint64) for _ in range(sites)]
    sent = [masks.packed(words, width) for words in vectors]
    assert [len(each) for each in sent] == [300 * width] * sites
    total = masks.signed(masks.summed(sent, width), width)
    modulus = 2 ** (masks.LOW + 8 * width)
    for value, column in zip(total.tolist(), np.array(vectors).T.tolist(), strict=True):
        kept = sum(word >> masks.LOW << masks.LOW for word in column)
        assert (value - kept - (sites << masks.LOW - 1)) % modulus == 0
        assert -modulus // 2 <= value < modulus // 2


@pytest.mark.parametrize(
    ("patients", "ratio", "width"),
    [(0, 0.1, 6), (1984, 1.0, 3), (1985, 1.0, 4), (524_224, 1.0, 4), (40_000, 100.0, 5),
     (2**27, 100.0, 6)],
)  # fmt: skip
def test_width(patients, ratio, width):
    assert masks.width_of(patients, ratio) == width
    if width < masks.MOST_WIDTH:
        largest = 16 * (patients * ratio + 64) * 2**24
        assert largest <= 2 ** (masks.LOW + 8 * width - 1)
        assert math.log2(largest) > masks.LOW + 8 * (width - 1) - 1


# --- Shares of a seed -----------------------------------------------------------------------------

SECRETS = st.integers(0, masks.PRIME - 1).map(lambda n: n.to_bytes(32, "little"))


def number(value):
    return value.to_bytes(32, "little")


def test_the_worked_example(monkeypatch):
    """The usual example is 1234 + 166 x + 94 x^2: (1, 1494), (2, 1942), (3, 2578), ..."""
    coefficients = iter([166, 94])
    monkeypatch.setattr(masks.secrets, "randbelow", lambda _: next(coefficients))
    shares = masks.shares_of(number(1234), 3, 6)
    assert shares == [number(n) for n in (1494, 1942, 2578, 3402, 4414, 5614)]
    assert masks.seed_from({2: number(1942), 4: number(3402), 5: number(4414)}) == number(1234)


@given(SECRETS, st.integers(1, 6), st.integers(0, 3))
def test_any_so_many_give_the_secret_and_fewer_another_number(secret, threshold, more):
    shares = dict(enumerate(masks.shares_of(secret, threshold, threshold + more), start=1))
    for places in combinations(shares, threshold):
        assert masks.seed_from({place: shares[place] for place in places}) == secret
        if threshold > 1:
            assert masks.seed_from({place: shares[place] for place in places[1:]}) != secret
    assert masks.seed_from(shares) == secret


def test_new_secrets_are_below_the_prime_and_differ():
    assert masks.new_seed(lambda size: b"\xff" * size) == number((2**512 - 1) % masks.PRIME)
    made = [masks.new_seed(os.urandom) for _ in range(500)]
    assert len({*made}) == 500
    assert max(int.from_bytes(secret, "little") for secret in made) < masks.PRIME
    ones = np.unpackbits(np.frombuffer(b"".join(made), np.uint8)).mean()
    assert ones == pytest.approx(0.5 * 255 / 256, abs=0.01)
