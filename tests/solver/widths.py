"""The kernels' tests as on other processors: ``make test-widths``.

Without arguments, all tests run. Arguments are passed to pytest.
"""

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


def run(changes: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a new process, because registers are fixed on import."""
    dropped = {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("PYTEST_")
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=CHECKOUT, env=kept | changes, capture_output=True, text=True, check=False,
    )  # fmt: skip


def main() -> int:
    """Run every variant. Print the last line of each, and the whole output of failures."""
    failed = 0
    for name, changes in variants().items():
        done = run(changes, *(sys.argv[1:] or TESTS))
        lines = done.stdout.strip().splitlines() or [done.stderr]
        print(f"{name}: {lines[-1]}", flush=True)
        if done.returncode:
            failed += 1
            print(done.stdout, done.stderr, sep="\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
