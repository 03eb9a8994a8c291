"""A run config's files."""

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.runtime.config import load_vocabularies
from dpfact_flower.settings import AppSettings


def test_a_deployments_public_codes_have_names(tmp_path):
    given = Vocabulary("diagnoses", ("icd9:4019", "local"), ("", "Ours"))
    given.save(tmp_path / "dx.json")
    (found,) = load_vocabularies(AppSettings(data="", vocabulary=str(tmp_path / "dx.json")))
    assert found.descriptions == ("Unspecified essential hypertension", "Ours")
    assert found.digest == given.digest
