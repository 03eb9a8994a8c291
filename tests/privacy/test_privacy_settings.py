import math

import pytest

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy.paper import PaperPlan, paper_rho
from dpfact_flower.settings import PrivacySettings, SolverSettings


def test_default_is_never_unprotected_and_never_computable():
    settings = PrivacySettings()
    assert settings.privacy == "patient"
    assert (settings.epsilon, settings.delta, settings.noise_seed) == (4.0, 1e-5, -1)


def test_the_default_solver_fits_the_default_privacy():
    PrivacySettings().check_solver(SolverSettings())


@pytest.mark.parametrize("changes", [{"scale": "counts"}, {"nonnegative": False}])
def test_patient_mode_needs_patients_of_norm_one_and_a_non_negative_model(changes):
    with pytest.raises(SettingsError, match="'patient' bounds patients of norm 1"):
        PrivacySettings().check_solver(SolverSettings(**changes))
    PrivacySettings(privacy="none").check_solver(SolverSettings(**changes))


def test_codes_to_keep_are_sizes_of_modes():
    assert PrivacySettings().codes_kept == ()
    assert PrivacySettings(codes="202x316").codes_kept == (202, 316)
    assert PrivacySettings(codes="7").codes_kept == (7,)


def test_rho_is_planned_from_epsilon():
    rho = paper_rho(PrivacySettings(privacy="paper", epsilon=1.9, delta=1e-4), rounds=49, factors=3)
    assert PaperPlan(rho, 1e-4, 49, 3).guarantee().headline.epsilon == pytest.approx(1.9)


@pytest.mark.parametrize(
    "settings",
    [
        PrivacySettings(epsilon=2.0, delta=1e-6, noise_seed=3),
        PrivacySettings(privacy="paper", rho=1e-3),
        PrivacySettings(patients=10_000, start_share=0.8, refine_rounds=0, bound=0.2,
                        codes="6x8", codes_share=0.1, weighting="inverse-frequency"),
    ],
    ids=lambda settings: settings.privacy,
)  # fmt: skip
def test_config_round_trip(settings):
    assert PrivacySettings.from_config(settings.to_config()) == settings
    assert "noise-seed" in settings.to_config()


BAD = {
    "privacy": ("patient-ish",), "epsilon": (0.0, 1.1e6, math.inf, math.nan),
    "delta": (0.0, 1.0, math.nan), "rho": (-1.0,), "noise-seed": (-2,),
    "codes": ("6x0", "6x", "6,8", "-6x8"), "codes-share": (0.0, 0.6), "bound": (5e-4, 1.5),
    "start-share": (-0.1, 1.1), "refine-rounds": (-2, 101), "patients": (-1,),
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "config"),
    [
        *((key, {key: value}) for key, values in BAD.items() for value in values),
        ("rho", {"privacy": "none", "rho": 1e-3}),
        ("rho", {"privacy": "patient", "rho": 1e-3}),
        ("noise-seed", {"privacy": "none", "noise-seed": 0}),
        ("codes", {"privacy": "paper", "codes": "6x8"}),
        ("codes", {"privacy": "none", "codes": "6x8"}),
        ("weighting: .* set codes", {"weighting": "inverse-frequency"}),
        ("weighting", {"privacy": "none", "weighting": "inverse-frequency"}),
        ("weighting", {"privacy": "paper", "weighting": "inverse-frequency"}),
        ("weighting", {"codes": "6x8", "weighting": "often"}),
    ],
)
def test_bad_settings_name_their_key(key, config):
    with pytest.raises(SettingsError, match=f"^{key}"):
        PrivacySettings.from_config(config)
