"""Phenotypes in other runs: found where they are, and not where chance alone would put them."""

import json

import numpy as np
import pytest

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.replication import read_replications, replications, write_replications
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.run_folder import read_model, write_model
from tests.evaluation.folders import dpfact, run_folder


def turned(folder, order, keep=slice(None)):
    """The run's phenotypes and codes in another order, and codes left out."""
    factors, lists = read_model(folder)
    rows = [np.arange(len(v))[::-1][keep] for v in lists]
    write_model(
        folder,
        [f[own][:, order] for f, own in zip(factors, rows, strict=True)],
        [Vocabulary(v.name, [v.codes[i] for i in own], [v.descriptions[i] for i in own])
         for v, own in zip(lists, rows, strict=True)],
    )  # fmt: skip


def test_phenotypes_are_found_under_other_numbers_and_in_other_lists(tmp_path):
    run, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other")
    turned(other, [2, 0, 1, 4, 3])
    (found,) = replications(run, [other])
    assert [(p.number, p.other) for p in found.pairs] == [(1, 2), (2, 3), (3, 1), (4, 5), (5, 4)]
    np.testing.assert_allclose([p.match for p in found.pairs], 1.0, rtol=1e-6)
    assert found.count == 5
    assert all(p.fair == 0.7225 > p.chance for p in found.pairs)
    assert "epsilon 4.000, proven" in found.how
    turned(other, range(5), keep=slice(3, None))
    (less,) = replications(run, [other])
    assert all(p.match < 1 - 1e-6 for p in less.pairs)


def test_phenotypes_that_have_nothing_in_common_are_not_found_again(tmp_path):
    run, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other", seed=7)
    (found,) = replications(run, [other])
    # These pairs are drawn as those of chance are: all five above its 95th percentile has a
    # probability of about 0.05^5; the seeds are fixed.
    assert found.count < 5


def test_a_phenotype_of_codes_that_belong_to_everything_is_not_found_again(tmp_path):
    """All have one first list: whatever that is tied to, each has an equal partner."""
    run = run_folder(tmp_path / "run")
    factors, lists = read_model(run)
    factors[0][:] = factors[0][:, [0]]
    write_model(run, factors, lists)
    (found,) = replications(run, [run])
    assert [p.match for p in found.pairs] == pytest.approx([1.0] * 5)
    assert found.count == 0
    write_replications(run, (found,))
    page = write_report(run).read_text()
    assert page.count("1.00†") == page.count(" Unconfirmed: ") == 5


def test_runs_of_other_modes_are_refused(tmp_path):
    run, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other")
    factors, lists = read_model(other)
    write_model(other, factors, [Vocabulary("drugs", lists[0].codes), lists[1]])
    with pytest.raises(DataError, match="modes are drugs, diagnoses; need procedures, diagnoses"):
        replications(run, [other])


def test_what_was_found_is_kept_for_the_next_report(tmp_path):
    run, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other", noise=0.05)
    dpfact("report", run, "--beside", other)
    first = (run / "report.html").read_bytes()
    assert b"The patterns in other runs" in first
    assert write_report(run).read_bytes() == first
    assert read_replications(run, 5) == replications(run, [other])
    with pytest.raises(DataError, match="of another model"):
        read_replications(run, 6)
    content = json.loads((run / "beside.json").read_text())
    del content[0]["pairs"][0]["chance"]
    (run / "beside.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"beside\.json: lacks 0\.pairs\.0\.chance"):
        write_report(run)
    write_replications(run, ())
    assert b"The patterns in other runs" not in write_report(run).read_bytes()
