"""Mask 64-bit words by adding keystreams modulo 2**64, derive keys, and split seeds into shares.

A site sends only `width` bytes of each masked 64-bit word, starting at bit `LOW`. Dropping bits
after masking is post-processing, which costs no privacy. Rounding a vector before masking would not
be post-processing, because a sum of rounded vectors is not a function of the exact sum.

ChaCha20 follows RFC 8439, HKDF follows RFC 5869, and X25519 follows RFC 7748. Mask seeds are split
into shares by Shamir's method (1979), modulo the prime 2**255 - 19.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from dpfact_flower.errors import PrivacyRefusedError
from dpfact_flower.privacy.secure_sum.keys import hashed

Words = NDArray[np.uint64]
MOST_WIDTH = 6
"""Maximum number of bytes sent for a masked word."""
LOW = 16
"""Number of low bits that are never sent. Their value is below 2**16, which is 1/256 of the
standard deviation of a site's noise."""
_NOISE_BITS = 24
PRIME = 2**255 - 19
SEED_BYTES = 32
"""Number of bytes in a seed or share. The lowest byte comes first."""
_BLOCK = 1 << 14  # words per block, small enough for the cache


def width_of(patients: int, ratio: float) -> int:
    """Return how many bytes of each word must be sent to rule out overflow in a sum.

    `patients` is 0 if unknown. `ratio` is the sensitivity divided by the standard deviation of one
    site's noise. The bytes can hold sums of up to 16 * (patients * ratio + 64) standard deviations.
    """
    if not patients:
        return MOST_WIDTH
    bits = math.log2(32 * (patients * ratio + 64)) + _NOISE_BITS
    return min(MOST_WIDTH, math.ceil((bits - LOW) / 8))


def agreed(private_key: X25519PrivateKey, public_key: bytes) -> bytes:
    """Return the Diffie-Hellman secret that a private X25519 key shares with another site's key."""
    try:
        return private_key.exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError:
        raise PrivacyRefusedError("members: a site's key is of low order") from None


def derived(secret: bytes, context: bytes, *purpose: str) -> bytes:
    """Derive a key for one purpose in one context with HKDF-SHA256.

    `purpose` names the sites, so that keys differ even if a site copies another site's key.
    """
    return HKDF(hashes.SHA256(), 32, salt=context, info=hashed(*purpose)).derive(secret)


def mask(words: Words, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
    """Add one keystream to `words` per key in `added`, and subtract one per key in `subtracted`."""
    operations = [(key, np.add) for key in added] + [(key, np.subtract) for key in subtracted]
    streams = [  # each key is used only once, so the nonce may be zero
        (Cipher(ChaCha20(key, bytes(16)), None).encryptor(), operation)
        for key, operation in operations
    ]
    zeros = memoryview(bytes(8 * _BLOCK))
    buffer = bytearray(len(zeros))
    keystream = np.frombuffer(buffer, "<u8")
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        for cipher, operation in streams:
            cipher.update_into(zeros[: block.nbytes], buffer)
            operation(block, keystream[: len(block)], out=block)


def packed(words: Words, width: int) -> bytes:
    """From each word, return the `width` bytes that a site sends, starting at bit `LOW`."""
    table = np.asarray(words, "<u8").view(np.uint8).reshape(len(words), 8)
    return table[:, LOW // 8 : LOW // 8 + width].tobytes()


def summed(vectors: Sequence[bytes], width: int) -> Words:
    """Sum packed vectors, and add the expected value of the low bits that were not sent."""
    total = np.zeros(len(vectors[0]) // width, np.uint64)
    for vector in vectors:
        # Each 8-byte word includes bytes of later words, which `signed` removes from the sum.
        total += np.ndarray(len(total), "<u8", vector + bytes(8 - width), strides=(width,))
    # The missing bits of each word were uniformly distributed, because the word was masked.
    return (total << np.uint64(LOW)) + np.uint64(len(vectors) << (LOW - 1))


def signed(words: Words, width: int) -> NDArray[np.int64]:
    """Convert words to signed integers, without the highest bits, which no site sends."""
    spare = 64 - LOW - 8 * width
    return (words << np.uint64(spare)).view(np.int64) >> np.int64(spare)


def new_seed(random_bytes: Callable[[int], bytes]) -> bytes:
    """Draw a seed below `PRIME` from `random_bytes`, uniformly except for a bias below 2**-256."""
    number = int.from_bytes(random_bytes(2 * SEED_BYTES), "little") % PRIME
    return number.to_bytes(SEED_BYTES, "little")


def shares_of(seed: bytes, threshold: int, places: int) -> list[bytes]:
    """Split a seed by Shamir's method into shares for the points 1 to `places`.

    Any `threshold` shares determine the seed, and fewer shares reveal nothing about the seed.
    """
    rest = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial = [int.from_bytes(seed, "little"), *rest]
    shares = []
    for place in range(1, places + 1):
        terms = (factor * pow(place, power, PRIME) for power, factor in enumerate(polynomial))
        shares.append((sum(terms) % PRIME).to_bytes(SEED_BYTES, "little"))
    return shares


def seed_from(shares: Mapping[int, bytes]) -> bytes:
    """Recover the seed from at least `threshold` shares, using Lagrange interpolation at 0.

    `shares` maps points to shares. A wrong share is not detected, and makes the seed wrong.
    """
    seed = 0
    for place, share in shares.items():
        others = [other for other in shares if other != place]
        below = math.prod(other - place for other in others)
        weight = math.prod(others) * pow(below, -1, PRIME)
        seed += int.from_bytes(share, "little") * weight
    return (seed % PRIME).to_bytes(SEED_BYTES, "little")
