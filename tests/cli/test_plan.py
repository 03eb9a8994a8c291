"""`dpfact plan`: the plan that server and sites make before any charge."""

import json
import math
from functools import partial

import pytest

from dpfact_flower.errors import SettingsError
from dpfact_flower.estimation.outlook import outlook_of
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.settings import PrivacySettings
from tests.commands import dpfact

FACTS = ("--sizes", "202x316", "--patients", "40662", "--sites", "6", "--rank", "50")

plan = partial(dpfact, "plan", width=160)


def test_it_prints_the_plan_of_a_run():
    found = json.loads(plan(*FACTS, "--epsilon", "2", "--json", "-s", "bound=0.2"))
    settings = PrivacySettings(epsilon=2.0, delta=1e-5, patients=40662, bound=0.2)
    made = plan_patient(settings, sizes=(202, 316), rank=50, sites=6)
    assert found["rounds"] == made.rounds
    assert [r["sigma"] for r in found["releases"]] == [r.sigma for r in made.releases]
    assert found["guarantee"]["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert found["guarantee"]["epsilon"] <= 2.0
    assert "proven" in found["guarantee"]["claim"]
    assert found["outlook"]["signal"] == pytest.approx(outlook_of(made).signal)


def test_the_table_names_each_release_and_the_prospects():
    text = plan("--sizes", "202x316", "--patients", "5000", "--sites", "6", "--rank", "20")
    for part in ("round 1, start", "refine mode 2", "Gaussian DP", "epsilon 0.5"):
        assert part in text
    alone = plan("--sizes", "202x316", "--patients", "5000", "--sites", "1", "--rank", "1")
    assert "5,000 patients at 1 site, 518 codes and 1 phenotype at epsilon 4:" in alone
    settings = PrivacySettings(epsilon=0.5, delta=1e-5, patients=5000)
    for rank in (5, 10, 20, 50):  # fewer phenotypes stand higher above the noise
        made = plan_patient(settings, sizes=(202, 316), rank=rank, sites=6)
        assert f"{outlook_of(made).signal:.2g}" in text


def test_it_foresees_what_helps_and_what_a_site_needs():
    facts = ("--sizes", "5000x5000", "--patients", "100000", "--sites", "6")
    text = plan(*facts)
    found = json.loads(plan(*facts, "--json"))
    assert (
        f"beat all fits to shuffled patients is {100 * found['outlook']['chance']:.0f} in 100"
        in text
    )
    assert "2.4 GB of memory" in text
    needs = found["needs"]
    assert "the server needs about 7.8 GB of memory" in text
    assert needs["server"] == pytest.approx(7.8e9, rel=0.01)
    assert needs["codes"] == "1000x1000"
    assert "codes = 1000x1000" in text
    levers = {lever["name"]: lever for lever in found["outlook"]["levers"]}
    assert set(levers) == {"rank", "epsilon", "patients", "codes", "sites"}
    assert f"{math.ceil(levers['patients']['good'] / 1000)},000 " in text


def test_the_price_of_replacing_a_record_stands_beside_every_epsilon():
    text = plan(*FACTS, "--epsilon", "4")
    assert text.count("; replacing a patient's record: 9.085)") == 1
    assert text.count("replacing a patient's record:") == 4  # one for each accountant
    assert "(9.085)" in text  # in the heading of the table of prospects
    found = json.loads(plan(*FACTS, "--json"))["guarantee"]
    assert found["replacing"] == pytest.approx(9.085, abs=1e-3)


@pytest.mark.parametrize("secure", ["false", "true"])
def test_it_says_what_secure_sums_are_worth_and_rest_on(secure):
    facts = ("--sizes", "202x316", "--patients", 10000, "--sites", 20, "--epsilon", 1, "--rank", 10)
    shown = plan(*facts, "--set", f"secure-sums={secure}")
    assert "signal 6.2 instead of 1.6, chance 39 instead of 0 in 100" in shown
    assert "at most 2 of 20 sites collude" in shown
    assert "epsilon 4.747 instead of 1.000" in shown
    assert ("even if all other sites collude" in shown) is (secure == "true")
    for impossible in (("2",), ("1500",), ("6", "--set", "secure-colluding=6")):
        assert "secure" not in plan(*facts[:4], "--sites", *impossible)


def test_a_delta_too_large_for_the_patients_of_a_site_gives_a_warning_that_helps():
    asked = ("--sizes", "202x316", "--patients", "60000", "--sites", "6")
    text = plan(*asked, "--delta", "0.00002")
    assert "warning: delta 2e-05 is large for a site of 10,000 patients" in text
    assert "a chance of 20% would be within the guarantee; choose delta = 1e-05" in text
    text = plan("--sizes", "202x316", "--patients", "6000", "--sites", "6", "--delta", "0.001")
    assert "choose delta = 0.0001" in text
    for fine in ((*asked, "--delta", "1e-05"), ("--sizes", "202x316", "--delta", "0.001")):
        assert "warning" not in plan(*fine)


def test_without_patients_and_sites_it_says_that_it_does_not_know():
    text = plan("--sizes", "202x316x40")
    assert "unknown" in text
    assert "nan" not in text
    found = json.loads(plan("--sizes", "202x316x40", "--json"))
    assert found["outlook"] == {"verdict": "unknown"}
    assert all(math.isfinite(release["sigma"]) for release in found["releases"])


def test_the_largest_sizes_and_what_cannot_be_planned_at_other_epsilons_have_a_plan():
    assert "What would help" in plan(*FACTS, "-s", "start-share=0.99999", "-s", "refine-rounds=100")
    found = json.loads(plan("--sizes", "10000x9999", "--json"))
    assert found["releases"][0]["count"] == 19999 * 19998 // 2
    plan("--sizes", "1000000x1000000", "-s", "codes=200x300")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--sizes", "202by316"), "--sizes"),
        (("--sizes", "0x316"), "sizes"),
        (("--sizes", "20000x1"), r"sizes: 20000x1 makes .* 200,010,000 values.* 200,000,000"),
        (("--sizes", "9" * 30 + "x2"), "sizes: 9+x2 makes"),
        (("--sizes", "2x3", "-s", "epsilon=3"), "use --epsilon"),
        (("--sizes", "2x3", "-s", "rank=3"), "use --rank"),
        (("--sizes", "2x3", "-s", "privacy=none"), "privacy"),
        (("--sizes", "2x3", "-s", "bounds=1"), "did you mean"),
    ],
)
def test_what_can_not_be_planned_is_refused_by_name(arguments, names):
    with pytest.raises(SettingsError, match=names):
        plan(*arguments)
