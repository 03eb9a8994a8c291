"""Checks of settings: every class, every range, and typing errors."""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from dpfact_flower.errors import SettingsError, shown
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    SiteSettings,
    SolverSettings,
    describe,
    refuse_unknown,
)

CLASSES = (SolverSettings, PrivacySettings, RunSettings, AppSettings, SiteSettings)
BASE = {
    "mu": {"relative_l21": 0.0},
    # The values of other fields with which a field can take all its values.
    "clip": {"solver": "psgd"},
    "eta": {"gamma": 0.0},
    "rho": {"privacy": "paper"},
    "vocabulary": {"data": ""},
}

every_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


def key_of(field) -> str:
    return field.name.replace("_", "-")


def fields(*hints):
    """Parametrise by every field of every class, or by fields of the given types."""
    return pytest.mark.parametrize(
        ("kind", "field", "hint"),
        [
            pytest.param(kind, field, hint, id=f"{kind.__name__}.{field.name}")
            for kind in CLASSES
            for field in dataclasses.fields(kind)
            if (hint := get_type_hints(kind)[field.name]) in hints or not hints
        ],
    )


every_field, every_number = fields(), fields(int, float)


def another(field, hint, given):
    """Return a valid value other than the given one."""
    if get_args(hint):
        return next(value for value in get_args(hint) if value != given)
    if hint is bool:
        return not given
    if field.name == "allow_privacy":
        return "none,paper"
    if field.name == "codes":
        return "202x316"
    if hint is str:
        return "other"
    step = 1 if hint is int else 1e-3 if field.name == "bound" else 1e-5
    return given + (step if given + step <= bounds(field)[1] else -step)


def bounds(field):
    """Return the ends of a field's range. Whole numbers stay exact."""
    return [float(end) if "inf" in end or "e" in end or "." in end else int(end)
            for end in field.metadata["allowed"][1:-1].split(", ")]  # fmt: skip


def build(kind, field, value):
    return kind(**{**BASE.get(field.name, {}), field.name: value})


def next_to(value, hint, direction):
    return value + direction if hint is int else math.nextafter(value, direction * math.inf)


@every_field
def test_every_field_survives_the_round_trip(kind, field, hint):
    value = another(field, hint, field.default)
    assert value != field.default
    settings = build(kind, field, value)
    config = settings.to_config()
    assert config[key_of(field)] == value
    assert kind.from_config(config) == settings
    assert settings != build(kind, field, field.default)


@every_class
def test_names_are_the_fields_with_hyphens_and_other_keys_are_left_alone(kind):
    assert kind.names() == [key_of(field) for field in dataclasses.fields(kind)]
    assert kind.from_config({"somebody-elses": object()}) == kind()


def test_no_key_means_two_things_at_the_server():
    server = [key for kind in CLASSES[:4] for key in kind.names()]
    assert len(set(server)) == len(server)


@every_number
def test_low_edge(kind, field, hint):
    low, is_open = hint(bounds(field)[0]), field.metadata["allowed"][0] == "("
    inside = next_to(low, hint, +1) if is_open else low
    assert getattr(build(kind, field, inside), field.name) == inside
    outside = low if is_open else next_to(low, hint, -1)
    with pytest.raises(SettingsError, match=f"^{key_of(field)}: must lie in"):
        build(kind, field, outside)


@every_number
def test_high_edge(kind, field, hint):
    high = bounds(field)[1]
    if high == math.inf:
        huge = hint(1e6 if field.name == "clip" else 1e18)
        assert getattr(build(kind, field, huge), field.name) == huge
        return
    inside = next_to(hint(high), hint, -1) if field.metadata["allowed"][-1] == ")" else hint(high)
    assert getattr(build(kind, field, inside), field.name) == inside
    with pytest.raises(SettingsError, match=f"^{key_of(field)}: must lie in"):
        build(kind, field, next_to(inside, hint, +1))


@every_number
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_what_is_not_finite_is_refused(kind, field, hint, value):
    with pytest.raises(SettingsError, match=f"^{key_of(field)}: "):
        build(kind, field, value)


WRONG_TYPES = {int: [True, 1.0, "1", None, [1]], float: [True, "0.1", None, [0.1], 1j],
               str: [1.5, True, None, b"x", ["x"]], bool: [0, 1, "true", None]}  # fmt: skip


@every_field
def test_a_wrong_type_is_refused_by_name(kind, field, hint):
    for value in WRONG_TYPES.get(hint, [1, True, None, "", "PSGD", ["psgd"]]):
        with pytest.raises(SettingsError, match=f"^{key_of(field)}: "):
            build(kind, field, value)
        with pytest.raises(SettingsError, match=f"^{key_of(field)}: "):
            kind.from_config({key_of(field): value})


def test_zero_has_one_sign():
    """Digests of settings depend on their text."""
    for zero in (-0.0, 0.0):
        config = SolverSettings.from_config({"solver": "exact", "mu": zero}).to_config()
        assert str(config["mu"]) == "0.0"


NAMES = {"job": RunSettings, "site": SiteSettings}
BAD_NAMES = ["../x", "..", "/etc", "a/b", "a\\b", ".hidden", "-x", "a b", "a\n", "a\nERROR", "a\0",
             "ä", "a" * 65, "a" * 200]  # fmt: skip


@pytest.mark.parametrize("key", NAMES)
@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_names_that_could_not_be_folders_are_refused(key, name):
    with pytest.raises(SettingsError, match=f"^{key}: .* does not match"):
        NAMES[key].from_config({key: name})


IMPOSSIBLE = [
    (PrivacySettings, {"rho": 1e-3}, "rho"),
    (PrivacySettings, {"privacy": "paper", "codes": "2x3"}, "codes"),
    (PrivacySettings, {"privacy": "none", "codes": "2x3"}, "codes"),
    (PrivacySettings, {"codes": "2x0"}, "codes"),
    (PrivacySettings, {"bound": 1e-4}, "bound"),
    *[(PrivacySettings, {"codes": codes}, "codes") for codes in ("6x", "6,8", "-6x8")],
    (PrivacySettings, {"privacy": "none", "rho": 1e-3}, "rho"),
    (PrivacySettings, {"privacy": "none", "noise-seed": 0}, "noise-seed"),
    (AppSettings, {"vocabulary": "x.json"}, "vocabulary"),
    (AppSettings, {"out": "x", "state-dir": "x/y"}, "state-dir"),
    (AppSettings, {"out": "x", "state-dir": "y/../x/sites"}, "state-dir"),
    (AppSettings, {"out": "./x", "state-dir": "x"}, "state-dir"),
    (AppSettings, {"out": ""}, "out: need a folder"),
    (AppSettings, {"out": "/"}, "out: need a folder"),
    (AppSettings, {"out": Path("runs")}, "out: need text"),
    (SiteSettings, {"allow-privacy": "none,nonsense"}, "allow-privacy: modes are patient, paper"),
    *[(SiteSettings, {"allow-privacy": modes}, "allow-privacy")
      for modes in ("None", "paper,", ",paper", "paper paper", "*")],
    (RunSettings, {"sites": 2, "min-sites": 3}, "min-sites: a quorum of 3 cannot be met"),
    (RunSettings, {"rounds": 10**400}, "rounds: must lie in"),
    (SolverSettings, {"eta": 10**400}, "eta: must lie in"),
    (SolverSettings, {"rank": 2.0}, r"rank: need a whole number, got 2\.0"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "config", "says"), IMPOSSIBLE, ids=str)
def test_impossible_settings_are_refused(kind, config, says):
    with pytest.raises(SettingsError, match=f"^{says}"):
        kind.from_config(config)


def test_default_is_never_unprotected_and_never_computable():
    settings = PrivacySettings()
    settings.check_solver(SolverSettings())
    assert settings.privacy == "patient"
    assert (settings.epsilon, settings.delta, settings.noise_seed) == (4.0, 1e-5, -1)


@pytest.mark.parametrize("changes", [{"scale": "counts"}, {"nonnegative": False}])
def test_patient_mode_needs_patients_of_norm_one_and_a_non_negative_model(changes):
    with pytest.raises(SettingsError, match="'patient' bounds patients of norm 1"):
        PrivacySettings().check_solver(SolverSettings(**changes))
    PrivacySettings(privacy="none").check_solver(SolverSettings(**changes))


@pytest.mark.parametrize("loss", ["poisson", "bernoulli"])
@pytest.mark.parametrize("rounds", [2, -1])
def test_patient_mode_has_other_losses_without_refinement(loss, rounds):
    solver = SolverSettings(loss=loss)
    with pytest.raises(SettingsError, match="set refine-rounds to 0, or"):
        PrivacySettings(refine_rounds=rounds).check_solver(solver)
    privacy = PrivacySettings(refine_rounds=0)
    privacy.check_solver(solver)
    assert privacy.sent(solver) == SolverSettings()
    with pytest.raises(SettingsError, match="nonnegative to true"):
        privacy.check_solver(replace(solver, nonnegative=False))


def test_codes_to_keep_are_sizes_of_modes():
    for codes, kept in {"": (), "202x316": (202, 316), "7": (7,)}.items():
        assert PrivacySettings(codes=codes).codes_kept == kept


def test_folders_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = AppSettings(out="runs/x")
    assert settings.run_folder == tmp_path / "runs" / "x"
    assert settings.sites_folder == tmp_path / "runs" / "x.sites"
    assert settings.cohort_folder == tmp_path / "runs" / "x.sites" / "data-demo"
    elsewhere = AppSettings(out="~/x", state_dir="~/s", data="~/d")
    home = tmp_path / "home"
    assert elsewhere.run_folder == home / "x"
    assert elsewhere.sites_folder == home / "s"
    assert elsewhere.cohort_folder == home / "d"


@pytest.mark.parametrize(
    ("data", "preset"),
    [("synthetic:demo", "demo"), ("synthetic:", "demo"), ("synthetic", ""),
     ("synthetic:paper-mimic", "paper-mimic"), ("folder", ""), ("", ""), ("C:synthetic", "")],
)  # fmt: skip
def test_synthetic_preset(data, preset):
    assert AppSettings(data=data).synthetic_preset == preset


@every_class
def test_every_field_is_described(kind):
    lines = describe(kind)
    assert [line.key for line in lines] == kind.names()
    defaults = kind().to_config()
    for line in lines:
        assert line.default == defaults[line.key]
        assert line.help.strip()
        assert len(line.help) <= 120
        assert line.help.isprintable()
        assert line.allowed


def test_allowed_values_are_said():
    allowed = {line.key: line.allowed for kind in CLASSES for line in describe(kind)}
    assert allowed["rank"] == "int in [1, 1000]"
    assert allowed["eta"] == "float in [1e-08, 1]"
    assert allowed["delta"] == "float in (0, 1)"
    assert allowed["seed"] == "int in [0, 2147483648]"
    assert allowed["gamma"] == "float in [-1, inf)"
    assert allowed["zeros"] == "none | stratified"
    assert allowed["nonnegative"] == "bool"
    assert allowed["out"] == "str"


MISSPELT = {
    "rnak": "rank", "round_timeout": "round-timeout", "gama": "gamma", "min-site": "min-sites",
    "privcy": "privacy", "Rounds": "rounds", "noise_seed": "noise-seed",
}  # fmt: skip


@pytest.mark.parametrize(("key", "meant"), MISSPELT.items(), ids=MISSPELT)
def test_an_unknown_key_is_refused_with_the_nearest_known(key, meant):
    with pytest.raises(SettingsError, match=f"^{key}: no such setting; did you mean '{meant}'"):
        refuse_unknown({"rank": 3, key: 1}, *CLASSES)


def test_an_unknown_key_like_no_other_is_refused_with_all_known():
    says = r"^zzzz: no such setting; known: rank, .*, max-epsilon-alone$"
    with pytest.raises(SettingsError, match=says):
        refuse_unknown({"zzzz": 1}, *CLASSES)


def test_numpy_scalars_are_numbers():
    settings = SolverSettings(rank=np.int64(3), eta=np.float32(0.5))
    assert (settings.rank, settings.eta, type(settings.rank)) == (3, 0.5, int)
    assert AppSettings(out=2024).out == "2024"  # as in -s out=2024


class Sulking:
    def __repr__(self):
        raise RuntimeError("no")


def test_a_short_value_is_shown_as_in_code():
    assert shown("a") == "'a'"
    assert shown(1.5) == "1.5"
    assert shown((1, "b")) == "(1, 'b')"
    assert shown("M\u00fcnchen") == "'M\u00fcnchen'"


@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, b"\xff" * 100_000, ["y" * 100_000] * 9, list(range(10**6)), 10**5000,
     "line\nline", "\u202e\ud800\x00", Sulking(), {"a": "z" * 1000}],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_any_value_is_a_short_printable_line(value):
    text = shown(value)
    assert len(text) <= 83
    assert text.isprintable()


@pytest.mark.parametrize("key", ["solver", "rank", "nonnegative", "eta"])
def test_no_setting_quotes_a_long_value_whole(key):
    with pytest.raises(ValueError, match=key) as error:
        SolverSettings.from_config({key: "x" * 100_000})
    assert len(str(error.value)) < 300
