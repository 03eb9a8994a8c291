"""What the measurement of growth sees, and what it does not take for growth."""

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.endurance import Look, Used, commands, growth, slope, used_by
from tests.processes import Process

MINUTES = [n / 4 for n in range(240)]


def test_open_files_and_memory_of_a_process_are_seen(tmp_path):
    before = used_by(os.getpid())
    with ExitStack() as stack:
        for number in range(20):
            stack.enter_context(Path(tmp_path / str(number)).open("w"))
        kept = np.ones(2**24)  # 128 MiB: less may lie where something was freed
        after = used_by(os.getpid())
    assert after.handles == before.handles + 20
    assert after.resident > before.resident + 0.9 * kept.nbytes / 2**20


def test_a_growth_is_told_from_noise_that_is_larger_than_it():
    """10 MiB an hour, in noise of a MiB that lasts for eight looks; and noise alone."""
    rng = np.random.default_rng(1)
    noise = np.convolve(rng.normal(0, 1, len(MINUTES) + 7), np.full(8, 8**-0.5), "valid")
    grown = noise + 10 * np.array(MINUTES) / 60
    found, width = slope(MINUTES, list(grown))
    assert abs(found - 10) < width < 5
    found, width = slope(MINUTES, list(noise))
    assert abs(found) < width


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Of 400 draws 95 % within, to 3 of its deviations."""
    rng, held = np.random.default_rng(2), 0
    for _ in range(400):
        noise = np.convolve(rng.normal(0, 1, len(MINUTES) + 3), np.full(4, 0.5), "valid")
        found, width = slope(MINUTES, list(noise))
        held += abs(found) < width
    assert abs(held / 400 - 0.95) < 3 * (0.95 * 0.05 / 400) ** 0.5


def test_what_fills_up_at_first_is_no_growth():
    values = [min(n, 40) for n in range(240)]
    assert slope(MINUTES, values) == (0.0, 0.0)


def test_who_grew_most_is_named():
    steady, leaking, server = (Process(pid, 0, "python") for pid in (1, 2, 3))
    looks = [
        Look(minutes, n, {steady: Used(5, 2, 80.0), leaking: Used(9, 4, 60.0 + minutes),
                          server: Used(3, 1, 300.0)}, 1.0, 1.0)
        for n, minutes in enumerate(MINUTES)
    ]  # fmt: skip
    names = {steady: "dpfact site", leaking: "dpfact superlink"}
    lines = [line.strip("| ").split(" | ") for line in growth(looks, names, {server})]
    found = {(of, figure): (rate, verdict) for of, figure, _, _, rate, _, verdict in lines[2:]}
    whose = "of these that whose memory grew most, dpfact superlink"
    assert found["the 2 processes that last", "resident"] == ("+60.00", "grows")
    assert found[whose, "resident"] == ("+60.00", "grows")
    assert found[whose, "handles"] == ("+0.00", "no growth seen")
    assert found["the ServerApp that lasted longest", "resident"][1] == "no growth seen"


def test_a_process_is_called_by_its_command():
    own = Process(os.getpid(), 0, "python")
    gone = Process(2**22 + 1, 0, "python")  # beyond the largest number that Linux gives
    found = commands([own, gone])
    assert list(found) == [own]
    assert "py" in found[own]
