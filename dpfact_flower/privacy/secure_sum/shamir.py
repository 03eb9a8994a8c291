"""Share a 32-byte secret by Shamir's method among numbered places, modulo 2**255 - 19, a prime.

Any `threshold` shares give the secret. Fewer shares reveal nothing about the secret (Shamir 1979).
Shares are not authenticated: with a false share, `recover` returns a different number.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

PRIME = 2**255 - 19
SIZE = 32
"""Number of bytes of a secret and of a share. The lowest byte is first."""


def new_secret(random_bytes: Callable[[int], bytes]) -> bytes:
    """Draw a secret below the prime, uniform up to 2**-256 if the bytes are uniform."""
    number = int.from_bytes(random_bytes(2 * SIZE), "little") % PRIME
    return number.to_bytes(SIZE, "little")


def share(secret: bytes, threshold: int, places: int) -> list[bytes]:
    """Return values at 1, 2, ..., `places` of a random polynomial. Its value at 0 is the secret."""
    rest = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial = [int.from_bytes(secret, "little"), *rest]
    return [_value(polynomial, place).to_bytes(SIZE, "little") for place in range(1, places + 1)]


def recover(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from at least `threshold` shares, by Lagrange interpolation at 0."""
    secret = 0
    for place, share_of_place in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        weight = above * pow(below, -1, PRIME)
        secret += int.from_bytes(share_of_place, "little") * weight
    return (secret % PRIME).to_bytes(SIZE, "little")


def _value(polynomial: Sequence[int], place: int) -> int:
    """Return a polynomial's value; the constant coefficient is first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value
