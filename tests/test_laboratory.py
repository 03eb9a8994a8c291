"""The laboratory's programs on small input."""

from pathlib import Path

import numpy as np
import pytest

from laboratory import flower_masks, follow, mutants
from laboratory.campaign.network import FAULTS
from laboratory.campaign.scenario import Scenario, carry_out
from laboratory.endurance import slope
from tests.docs.pages import PATHS, units

ROOT = Path(__file__).resolve().parents[1]
MODULE = '''
def f(x: int | None, *, y: int = 2) -> bool:
    """At least 1."""
    _logger.info("%d", x + 1)
    try:
        return x > 1
    except (OSError, ssl.SSLError):
        raise
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x: int | None", "x: int & None", True), ("x + 1)", "x - 1)", True),
        ("def f", "@compiled()\ndef f", True), ("None, *,", "None, /,", True),
        ("return x", "return not not", True), ("y: int = 2", "y: int = 3", False),
        ("x > 1", "x >= 1", False), ("x > 1", "x is 1", True), ("def f", "@cache\ndef f", False),
    ],
)  # fmt: skip
def test_mutants_that_differ_in_nothing_that_runs_are_known(old, new, same):
    assert mutants.says_the_same(MODULE, MODULE.replace(old, new)) is same


def test_a_sample_of_mutants_is_of_different_places_and_its_seed_repeats_it(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    one, places = mutants.sample(tmp_path, [Path("folder")], 10, 0)
    assert one == mutants.sample(tmp_path, [Path("folder")], 10, 0)[0]
    # The default, the comparison, its number and one exception give mutants; annotation, `*`, log
    # line and the dotted exception do not.
    assert [mutant.place.partition(":")[2] for mutant in one] == ["2", "6", "6", "7"]
    assert (one[1].before, places) == ("return x > 1", 9)


def test_mutants_that_are_explained_are_of_lines_that_are_there():
    for line in mutants.EXPLAINED:
        text = (ROOT / "dpfact_flower" / line["path"]).read_text(encoding="utf-8")
        assert line["before"] in {each.strip() for each in text.splitlines()}, line


def test_a_growth_is_told_from_noise_that_is_larger_than_it():
    """Growth of 10 MiB per hour with noise of 1 MiB over eight measurements, and noise alone."""
    minutes, rng = [n / 4 for n in range(240)], np.random.default_rng(1)
    noise = np.convolve(rng.normal(0, 1, len(minutes) + 7), np.full(8, 8**-0.5), "valid")
    found, width = slope(minutes, list(noise + 10 * np.array(minutes) / 60))
    assert abs(found - 10) < width < 5
    found, width = slope(minutes, list(noise))
    assert abs(found) < width
    # Caches that fill up at first are not growth.
    assert slope(minutes, [min(n, 40) for n in range(240)]) == (0.0, 0.0)


def test_every_rule_of_what_cannot_be_followed_leaves_something_out():
    texts = [unit.text for path in PATHS for unit in units(path) if not unit.python]
    for sign, reason in follow.LEFT_OUT:
        assert any(follow.re.search(sign, text) for text in texts), reason
    assert {page for page in follow.GIVEN if not (ROOT / page).is_file()} == set()


@pytest.mark.slow
def test_flowers_masks_are_found_to_have_few_bits_and_ours_all(capsys):
    found = flower_masks.main(60)
    assert list(found.values()) == [28, 32, 256]
    assert "28 bits  all tried in" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize("kind", FAULTS)
def test_a_run_with_one_kind_of_fault_ends_well(cohort, tmp_path, kind):
    outcome = carry_out(Scenario(7, "patient", 0.4, (kind,), None), cohort, tmp_path)
    assert outcome.problems == []
    assert any(kind in what for what in outcome.happened)


@pytest.mark.slow
def test_a_run_whose_server_dies_reaches_the_same_bits(cohort, tmp_path):
    whole = Scenario(2, "none", 0.0, (), None)  # no faults and no noise
    one, other = (carry_out(whole._replace(server=step), cohort, tmp_path / str(step))
                  for step in (None, 9))  # fmt: skip
    assert one.problems == other.problems == []
    assert (one.starts, other.starts) == (1, 2)
    assert one.factors == other.factors
