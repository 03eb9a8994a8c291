"""Measure how many different masks Flower's own SecAgg+ and this package can make.

    python -m laboratory.flower_masks

Flower folds a key of any length into a seed of 32 bits for NumPy's `RandomState`. Two sites agree
on a key of base64 text. The top bit of each byte of this text is 0, so only 28 bits of the seed can
differ. There are therefore only 2^28 such masks. `dpfact_flower.privacy.secure_sum` therefore makes
its own masks. No run needs this program.
"""

import argparse
import secrets
import time
from collections.abc import Callable, Iterable
from unittest.mock import patch

import numpy as np
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from dpfact_flower.privacy.secure_sum import masks


def seed_of(key: bytes) -> int:
    """Return the seed that Flower's own function makes for a mask."""
    with patch("numpy.random.RandomState") as generator:
        pseudo_rand_gen(key, 2, [(1,)])
    return generator.call_args.args[0]


def bits_that_differ(numbers: Iterable[int]) -> int:
    """Return the number of bits in which the numbers differ."""
    some, every = 0, -1
    for number in numbers:
        some, every = some | number, every & number
    return (some & ~every).bit_count()


def shared_key() -> bytes:
    """Return a key that two of Flower's sites agree on."""
    (own, _), (_, other) = generate_key_pairs(), generate_key_pairs()
    return generate_shared_key(own, other)


def hours_for_all(bits: int, tried: int = 2000) -> float:
    """Estimate the core hours needed to draw the first values of every seed."""
    began = time.process_time()
    for seed in range(tried):
        np.random.RandomState(seed).randint(0, 2**32 - 1, 4, dtype=np.int64)
    return (time.process_time() - began) / tried * 2**bits / 3600


def main(count: int) -> dict[str, int]:
    kinds: dict[str, Callable[[], int]] = {
        "Flower, pairwise": lambda: seed_of(shared_key()),
        "Flower, a site's own": lambda: seed_of(secrets.token_bytes(32)),
        "secure_sum, both": lambda: int.from_bytes(
            masks.derived(secrets.token_bytes(32), b"context", "mask"), "little"
        ),
    }
    found = {kind: bits_that_differ(draw() for _ in range(count)) for kind, draw in kinds.items()}
    for kind, bits in found.items():
        hours = f"all tried in {hours_for_all(bits):,.1f} core hours" if bits < 64 else ""
        print(f"{kind:22} {bits:4} bits  {hours}".rstrip())
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m laboratory.flower_masks", description=__doc__)
    parser.add_argument("--keys", type=int, default=500, help="keys of each kind")
    main(parser.parse_args().keys)
