"""Shares of a secret: Shamir 1979, by hand and by chance."""

import os
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.privacy.secure_sum import shamir

SECRETS = st.integers(0, shamir.PRIME - 1).map(lambda n: n.to_bytes(32, "little"))


def number(value):
    return value.to_bytes(32, "little")


def test_the_worked_example(monkeypatch):
    """1234 + 166 x + 94 x^2, the usual one: (1, 1494), (2, 1942), (3, 2578), ..."""
    coefficients = iter([166, 94])
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda _: next(coefficients))
    shares = shamir.share(number(1234), 3, 6)
    assert shares == [number(n) for n in (1494, 1942, 2578, 3402, 4414, 5614)]
    assert shamir.recover({2: number(1942), 4: number(3402), 5: number(4414)}) == number(1234)


@given(SECRETS, st.integers(1, 6), st.integers(0, 3))
def test_any_so_many_give_the_secret_and_fewer_another_number(secret, threshold, more):
    shares = dict(enumerate(shamir.share(secret, threshold, threshold + more), start=1))
    for places in combinations(shares, threshold):
        assert shamir.recover({place: shares[place] for place in places}) == secret
        if threshold > 1:
            assert shamir.recover({place: shares[place] for place in places[1:]}) != secret
    assert shamir.recover(shares) == secret


def test_new_secrets_are_below_the_prime_and_differ():
    made = [shamir.new_secret(os.urandom) for _ in range(500)]
    assert len({*made}) == 500
    assert max(int.from_bytes(secret, "little") for secret in made) < shamir.PRIME
    assert np.unpackbits(np.frombuffer(b"".join(made), np.uint8)).mean() == pytest.approx(
        0.5 * 255 / 256, abs=0.01
    )
