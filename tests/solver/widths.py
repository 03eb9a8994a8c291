"""The kernels' tests as on other processors: ``make test-widths``. Arguments go to pytest."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from llvmlite.binding import get_host_cpu_features

CHECKOUT = Path(__file__).parents[2]
TESTS = ("tests/solver", "tests/tensor/test_stack.py")


def variants() -> dict[str, dict[str, str]]:
    """Return the variants that this machine can run: names and environment variables.

    Without explicit features, a processor has those of its name: `haswell` has AVX2 with fused
    multiply-adds and 16 registers, and `x86-64` has 128 bits without AVX or fused multiply-adds.
    """
    try:
        has = get_host_cpu_features()
    except RuntimeError:  # a processor unknown to LLVM
        has = {}
    found: dict[str, dict[str, str]] = {"this processor": {}}
    if platform.machine().lower() in {"x86_64", "amd64"}:
        for name, needs in (("haswell", ("avx2", "fma")), ("x86-64", ())):
            if all(has.get(feature, False) for feature in needs):
                found[name] = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
    return found


def main() -> int:
    """Run the tests of every variant in a new process, because registers are fixed on import."""
    dropped = {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("PYTEST_")
    }
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *(sys.argv[1:] or TESTS)]
    failed = False
    for name, changes in variants().items():
        print(f"{name}:", flush=True)
        failed |= subprocess.call([sys.executable, *tests], cwd=CHECKOUT, env=kept | changes) != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
