"""Parts of a deployed round in seconds: ``python -m benchmarks.round_time [--rounds 8]``.

It starts a SuperLink and one SuperNode on loopback, without TLS, with Flower's own executor. The
data are tiny, so it measures the least time of a round. There is one site, because a round of
several takes as long as the slowest. Lines of the SuperNode's log mark the parts. It prints medians
over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.machine.logs import no_progress
from dpfact_flower.runtime.connection import tool
from dpfact_flower.runtime.superlink import LogFollower, free_port, local_superlink
from dpfact_flower.runtime.supervisor import supervised

_APP = Path(__file__).parents[1] / "simulation" / "dpfact-app"
_MARKS = ("Received successfully", "; ledger: ", "Sending: ")
"""The SuperNode has the message; the site has computed and charged; the SuperNode has the reply."""
_PARTS = (
    "executor's poll, process start, imports, reading, computing, the ledger",
    "process end, the SuperNode's poll for its reply",
    "the reply's way, the server's poll and update, the next request, the SuperNode's poll",
)


def marks(rounds: int) -> list[tuple[str, float]]:
    """The marks of a run's rounds, in order, and when each came."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        cohort = synthetic(preset("demo", patients=60, shares="1", local=0.0))
        (site,) = cohort.sites
        (folder / "data").mkdir()
        cohort.save(folder / "data")
        codes = [folder / f"{vocabulary.name}.json" for vocabulary in cohort.vocabularies]
        for vocabulary, path in zip(cohort.vocabularies, codes, strict=True):
            vocabulary.save(path)
        superlink = stack.enter_context(local_superlink(folder / "flwr", simulation=False))
        own = (
            f'site="{site.name}" data-path="{folder}/data/{site.name}.npz" '
            f'state-dir="{folder}/state" allow-privacy="none"'
        )
        command = [
            tool("flower-supernode"), "--insecure", "--superlink", superlink.address,
            "--port", str(free_port()), "--node-config", own,
        ]  # fmt: skip
        node = stack.enter_context(
            supervised(
                command, env=superlink.environment, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
        found: list[tuple[str, float]] = []
        threading.Thread(target=_listen, args=(node, found), daemon=True).start()
        superlink.run(
            _APP,
            {
                "rounds": rounds, "rank": 4, "privacy": "none", "start": "random", "data": "",
                "vocabulary": ",".join(map(str, codes)), "out": str(folder / "run"), "sites": 1,
                "preflight": "off",
            },
            follower=LogFollower(no_progress, lambda _: None),
        )  # fmt: skip
    return found


def _listen(node: subprocess.Popen[bytes], found: list[tuple[str, float]]) -> None:
    assert node.stdout is not None
    for line in node.stdout:
        for mark in _MARKS:
            if mark in line.decode(errors="replace"):
                found.append((mark, time.monotonic()))


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    found = marks(parser.parse_args().rounds)
    parts: dict[str, list[float]] = {part: [] for part in _PARTS}
    for (mark, at), (_, after) in itertools.pairwise(found):
        parts[_PARTS[_MARKS.index(mark)]].append(after - at)
    print("| part of a round | s, median | least | most |\n|---|---|---|---|")
    whole = 0.0
    for part, (_, *each) in parts.items():  # the first round compiles
        middle = statistics.median(each)
        whole += middle
        print(f"| {part} | {middle:.1f} | {min(each):.1f} | {max(each):.1f} |")
    print(f"| a round | {whole:.1f} | | |")


if __name__ == "__main__":
    main()
