"""`dpfact site`: what a hospital does at home."""

import pytest
from typer.testing import CliRunner

from dpfact_flower import cli
from dpfact_flower.runtime.federate import federate

RUN = {"privacy": "patient", "epsilon": 4.0, "rank": 3, "refine-rounds": 1, "noise-seed": 1}


@pytest.fixture
def state(cohort_folder, tmp_path):
    """State of three sites after a run, without their own models."""
    federate({**RUN, "data": str(cohort_folder), "out": str(tmp_path / "run")})
    for path in (tmp_path / "run.sites").rglob("state-*.npy"):
        path.unlink()
    return tmp_path / "run.sites"


def refit(cohort_folder, state, *more):
    arguments = ["--data", str(cohort_folder / "site-1.npz"), "--state", str(state), *more]
    return CliRunner().invoke(cli.app, ["site", "refit", *arguments])


def test_refit_fits_every_run_that_has_ended(cohort_folder, state):
    done = refit(cohort_folder, state)
    assert done.exit_code == 0, done.output
    assert "explains" in done.output
    assert len(list((state / "site-1").glob("*/state-*.npy"))) == 1
    again = refit(cohort_folder, state)
    assert "no run in patient mode has ended here that is not fitted yet" in str(again.exception)


def test_refit_fits_a_run_by_its_name_again(cohort_folder, state):
    refit(cohort_folder, state)
    (job,) = [path.parent.name for path in (state / "site-1").glob("*/ending.npz")]
    assert job in refit(cohort_folder, state, "--job", job).output


def test_refit_of_a_run_that_was_never_heard_of(cohort_folder, state):
    done = refit(cohort_folder, state, "--job", "other")
    assert "has not ended here" in str(done.exception)
