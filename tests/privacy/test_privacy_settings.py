import math

import pytest

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import PaperPlan, paper_rho
from dpfact_flower.settings import PrivacySettings


def test_default_is_never_unprotected_and_holds_the_papers_budget():
    settings = PrivacySettings()
    assert settings.privacy == "paper"
    assert (settings.epsilon, settings.delta, settings.noise_seed) == (1.2, 1e-4, -1)


def test_rho_is_planned_from_epsilon():
    rho = paper_rho(PrivacySettings(epsilon=1.9), rounds=49, factors=3)
    assert PaperPlan(rho, 1e-4, 49, 3).guarantee().headline.epsilon == pytest.approx(1.9)


def test_rho_that_is_given_is_taken():
    assert paper_rho(PrivacySettings(rho=1e-3), rounds=49) == 1e-3


def test_no_noise_has_no_rho():
    with pytest.raises(SettingsError, match="'none'"):
        paper_rho(PrivacySettings(privacy="none"), rounds=3)


@pytest.mark.parametrize("rounds", [0, -1, 2.5])
def test_rounds_to_plan_for_must_count(rounds):
    with pytest.raises(SettingsError, match="rounds"):
        paper_rho(PrivacySettings(), rounds)


def test_config_round_trip():
    settings = PrivacySettings(epsilon=2.0, delta=1e-5, noise_seed=3)
    assert PrivacySettings.from_config(settings.to_config()) == settings
    assert "noise-seed" in settings.to_config()


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"privacy": "patient-ish"}, "privacy"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 100.5}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"rho": -1.0}, "rho"),
        ({"noise-seed": -2}, "noise-seed"),
        ({"privacy": "none", "rho": 1e-3}, "rho"),
        ({"privacy": "none", "noise-seed": 0}, "noise-seed"),
    ],
)
def test_bad_settings_name_their_key(config, key):
    with pytest.raises(SettingsError, match=f"^{key}"):
        PrivacySettings.from_config(config)
