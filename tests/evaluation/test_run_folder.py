"""A run's folder: files can be read again, and damage is reported."""

import math

import numpy as np
import pytest

from dpfact_flower.cli.options import parse_assignments
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.run_folder import (
    CONFIG,
    MODEL,
    read_config,
    read_json,
    read_model,
    read_phenotypes,
    read_summary,
    write_config,
    write_json,
    write_model,
)
from dpfact_flower.server.history import read_history
from dpfact_flower.settings import AppSettings, PrivacySettings, RunSettings, SolverSettings

VOCABULARIES = (
    Vocabulary("procedures", ("0040", "40", "4.0"), ("", "a, b", "ü")),
    Vocabulary("diagnoses", ("E11", "I10")),
)
FACTORS = tuple(np.random.default_rng(size).random((size, 4)).astype(np.float32) for size in (3, 2))


@pytest.mark.parametrize("modes", [1, 2])
def test_model_round_trip(tmp_path, modes):
    write_model(tmp_path, FACTORS[:modes], VOCABULARIES[:modes])
    factors, vocabularies = read_model(tmp_path)
    assert vocabularies == VOCABULARIES[:modes]
    for one, other in zip(factors, FACTORS[:modes], strict=True):
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, other)


def test_codes_without_a_name_have_that_of_their_system(tmp_path):
    codes = ("icd10:I10", "icd9:41401", "ccs:101")
    write_model(tmp_path, FACTORS[:1], [Vocabulary("diagnoses", codes)])
    (vocabulary,) = read_model(tmp_path)[1]
    assert vocabulary.codes == codes
    assert vocabulary.descriptions == (
        "Essential (primary) hypertension",
        "Coronary atherosclerosis of native coronary artery",
        "Coronary atherosclerosis and other heart disease",
    )


def test_a_model_reads_without_this_package(tmp_path):
    write_model(tmp_path, FACTORS, VOCABULARIES)
    with np.load(tmp_path / MODEL, allow_pickle=False) as model:
        assert model["modes"].tolist() == ["procedures", "diagnoses"]
        np.testing.assert_array_equal(model["procedures"], FACTORS[0])
        assert model["procedures_codes"].tolist() == ["0040", "40", "4.0"]
        assert model["procedures_text"].tolist() == ["", "a, b", "ü"]


NO_FLOATS = "diagnoses must be float32"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"modes": None}, "lacks the array"),
        ({"diagnoses": None}, "lacks the array 'diagnoses'"),
        ({"modes": np.array(["procedures", "x"])}, "lacks the array"),
        ({"diagnoses_codes": np.array(["E11", "E11"])}, "position 1"),
        ({"diagnoses": np.ones((3, 4), "f4")}, NO_FLOATS),
        ({"diagnoses": np.ones((2, 3), "f4")}, NO_FLOATS),
        ({"procedures": np.ones(3, "f4"), "diagnoses": np.ones(2, "f4")}, "procedures must be"),
        ({"procedures": np.float32(1)}, "procedures must be float32"),
        ({"diagnoses": np.ones((2, 4))}, NO_FLOATS),
        ({"diagnoses": np.full((2, 4), np.nan, "f4")}, "diagnoses has values that are not finite"),
    ],
)
def test_a_damaged_model_is_refused(tmp_path, changes, says):
    write_model(tmp_path, FACTORS, VOCABULARIES)
    with np.load(tmp_path / MODEL) as archive:
        arrays = dict(archive) | changes
    kept = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / MODEL, **kept)
    with pytest.raises(DataError, match=says) as caught:
        read_model(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / MODEL))


def test_a_config_repeats_the_run(tmp_path):
    parts = (
        AppSettings(out='runs/"x" \\ y'), RunSettings(rounds=3, job="j"),
        SolverSettings(rank=7, eta=1e-17 + 1e-3, nonnegative=False), PrivacySettings(epsilon=0.1),
    )  # fmt: skip
    config = {key: value for part in parts for key, value in part.to_config().items()}
    write_config(tmp_path, config, {"python": "3.11.0"})
    text, found = (tmp_path / CONFIG).read_text(encoding="utf-8"), read_config(tmp_path)
    assert found == {"run-config": config, "versions": {"python": "3.11.0"}}
    for part in parts:
        assert type(part).from_config(found["run-config"]) == part
    # Every line can be given to the command line unchanged.
    lines = text.partition("[run-config]\n")[2].partition("\n\n")[0].splitlines()
    assert parse_assignments(lines) == config


def test_json_can_be_read_and_has_no_nan(tmp_path):
    content = {"rmse": 0.1, "auc": None, "sites": ["ü"], "nested": {"a": [1, 2.5, True]}}
    write_json(tmp_path / "x.json", content)
    assert "ü" in (tmp_path / "x.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"rmse": [math.nan]})
    assert read_json(tmp_path / "x.json") == content


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe"], ids=repr)
def test_what_is_not_json_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json: not readable as JSON$"):
        read_json(tmp_path / "x.json")


def test_a_config_has_two_tables(tmp_path):
    (tmp_path / CONFIG).write_text("versions = 1\n[run-config]\n")
    with pytest.raises(DataError, match=rf"{CONFIG}: lacks versions$"):
        read_config(tmp_path)
    (tmp_path / CONFIG).write_text("rank 3")
    with pytest.raises(DataError, match=rf"{CONFIG}: not readable as TOML$"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "read", [read_model, read_history, read_summary, read_phenotypes, read_config]
)
def test_a_missing_file_is_named(tmp_path, read):
    with pytest.raises(DataError, match=r"(?i)no such file"):
        read(tmp_path)
