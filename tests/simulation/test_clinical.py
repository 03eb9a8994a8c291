"""The study of clinical reality: its null, and that it measures every kind of model."""

import json

import numpy as np
import pytest

from dpfact_flower.data.synthetic import SyntheticSettings, synthetic
from dpfact_flower.evaluation.membership import mode_presence
from simulation.baselines import pooled
from simulation.studies import clinical
from simulation.studies.clinical import shuffled_codes

CLEAR = SyntheticSettings(
    name="clear", patients=600, modes="procedures:30:3,diagnoses:40:5", shares="0.5,0.5",
    phenotypes=4, local=0, active=1.1, background=0.05,
)  # fmt: skip


def test_shuffled_codes_are_as_frequent_and_go_with_nothing():
    tensor = pooled(synthetic(CLEAR))
    other = shuffled_codes(tensor, 1)
    for mode in (1, 2):
        before, after = (mode_presence(each, mode).toarray() for each in (tensor, other))
        assert (after.sum(axis=1) <= before.sum(axis=1)).all()
        assert after.sum() > 0.8 * before.sum()
        assert np.corrcoef(before.sum(axis=0), after.sum(axis=0))[0, 1] > 0.97
        used = before.sum(axis=0) > 20
        ties = [np.abs(np.corrcoef(each[:, used].T) - np.eye(used.sum())).max()
                for each in (before, after)]  # fmt: skip
        assert ties[0] > 0.4
        assert ties[1] < 0.25
    assert not np.array_equal(other.indices, shuffled_codes(tensor, 2).indices)


@pytest.mark.nightly
def test_every_kind_of_model_is_measured(tmp_path, capsys):
    synthetic(CLEAR).save(tmp_path / "data")
    out = tmp_path / "out"
    asked = [str(tmp_path / "data"), "--out", str(out), "--rank", "4", "--models", "2",
             "--epsilons", "inf"]  # fmt: skip
    clinical.main(asked)
    lines = capsys.readouterr().out.splitlines()
    kinds = [line.split(" | ")[2] for line in lines[2:]]
    assert kinds == ["ceiling", "null", "null: shuffled codes", "patient mode, epsilon inf"]
    found = json.loads((out / "clinical.json").read_text())
    npmi = {kind: [row["npmi"] for row in found if row["model"] == kind] for kind in kinds}
    assert all(len(values) == 2 for values in npmi.values())
    assert min(npmi["ceiling"]) > max(npmi["null"]) > min(npmi["null: shuffled codes"])
    assert min(npmi["patient mode, epsilon inf"]) > max(npmi["null"])
