"""Titles of phenotypes, and a page's sentences about them."""

from dataclasses import replace

import pytest

from dpfact_flower.evaluation import prose, tables
from dpfact_flower.evaluation.model import CodeRow
from dpfact_flower.privacy import NO_CLAIM, PATIENT_CLAIM
from tests.evaluation.summaries import DEPLOYED, MEASURED, SIMULATED


def found(*pairs):
    """Make a phenotype's similarity to its partner in each other run, and to chance partners."""
    return [tables.Pair(1, 1, match, 0.85**2, chance) for match, chance in pairs]


AGAIN, CHANCE, LOST = (0.9, 0.8), (0.9, 0.95), (0.7, 0.8)
"""Pairs: above the threshold; only as similar as by chance; below 0.85 per mode."""


@pytest.mark.parametrize(
    ("pairs", "word", "sentence"),
    [
        ((), "", "Not checked"),
        ((AGAIN,), "stable", "Stable: found again in the other run."),
        ((AGAIN,) * 2, "stable", "Stable: found again in both other runs."),
        ((AGAIN,) * 3, "stable", "Stable: found again in all three other runs."),
        ((AGAIN, LOST), "partly", "Partly stable: found again in one of two other runs."),
        ((AGAIN, CHANCE), "partly", "Partly stable: found again in one of two other runs."),
        ((CHANCE, LOST), "unconfirmed", "Unconfirmed: its match in another run"),
        ((LOST, LOST), "not found", "Not found again in any other run"),
    ],
)
def test_one_word_says_how_sure_a_phenotype_is(pairs, word, sentence):
    assert prose.certainty(found(*pairs), None) == [word] * bool(word)
    assert prose.certainty_sentence(found(*pairs)).startswith(sentence)


@pytest.mark.parametrize(
    ("chance", "word", "sentence"),
    [
        (0.1, "likely real", "Likely real: a fit to other patients would lack about 10 %"),
        (0.101, "uncertain", "Uncertain: a fit to other patients would lack about 10 %"),
        (0.6, "doubtful", "Doubtful: a fit to other patients would lack about 60 %"),
        (None, "", "Not checked"),
    ],
)
def test_a_run_alone_says_how_sure_a_phenotype_is_and_so_beside_others(chance, word, sentence):
    assert prose.certainty((), chance) == [word] * bool(word)
    assert prose.certainty_sentence((), chance).startswith(sentence)
    own = prose.certainty_sentence((), chance, (3,))
    assert own == prose.certainty_sentence((), chance)
    assert prose.certainty(found(AGAIN), chance) == ["stable"] + [word] * bool(word)
    both = ["Stable: found again in the other run."] + [own] * (chance is not None)
    assert prose.certainty_sentence(found(AGAIN), chance) == " ".join(both)


def test_doubt_because_of_a_phenotype_that_is_nearly_the_same_says_so():
    alike = prose.certainty_sentence((), 0.5, (2, 3, 4, 7))
    assert "because it differs from no. 2–4, 7 in one kind of code only, or its codes" in alike
    assert "because its codes may be merely frequent" in prose.certainty_sentence((), 0.5)


@pytest.mark.parametrize(
    ("without", "labels", "line"),
    [
        (0.64, ["stable"] * 9 + ["partly"] * 8 + ["unconfirmed"] * 3, "Twenty patterns; nine are "
         "stable; three not confirmed by other runs; 36 % of the patients have at least one."),
        ("<10", ["not_found"], "One pattern; none is stable; one not confirmed by other runs."),
        (None, [""] * 50, "50 patterns."),
        (0.998, [""], "One pattern; under 1 % of the patients have at least one."),
        (0.002, [""], "One pattern; over 99 % of the patients have at least one."),
        (None, ["likely_real"] * 2 + ["doubtful"], "Three patterns; two are likely real."),
        (None, ["uncertain", "doubtful"], "Two patterns; none is likely real."),
        (None, ["stable doubtful"] * 2, "Two patterns; two are stable."),
        (None, ["stable likely_real", "partly likely_real"],
         "Two patterns; one is stable; two are likely real (of which stable: one)."),
    ],
)  # fmt: skip
def test_a_run_in_one_line(without, labels, line):
    table = None if without is None else tables.PhenotypeTable(100, (), {}, without)
    own = [[word.replace("_", " ") for word in text.split()] for text in labels]
    assert prose.first_line(table, own, "patients") == line


def code(name, text, observed, everybody=0.05):
    return tables.CodeWeight(name, text, 0.5, observed, everybody)


HEART = tables.Phenotype(
    2, 1.0, 0.021,
    {
        "procedures": (code("36.06", "Insertion of stent", 0.9),),
        "diagnoses": (
            code("428", "Heart failure", 0.77),
            code("410", "Acute myocardial infarction, NOS", "nearly all"),
            code("250", "Diabetes", 0.6, everybody=0.5),
            code("427", "Dysrhythmia", 0.19),
            code("411", "Angina", "<10"),
        ),
    },
    {"died": tables.Association(rate=0.059, rate_interval=(0.047, 0.073))},
)  # fmt: skip


TABLE = tables.PhenotypeTable(62_651, (HEART,), {"died": 0.024})


def test_a_paragraph_says_whom_what_and_how_it_ended():
    assert prose.paragraph(HEART, TABLE, "patients") == [
        "1,316 patients (2.1 %).",
        "Diagnoses: nearly all had acute myocardial infarction (410), 77 % heart failure (428).",
        "Procedures: 90 % had insertion of stent (36.06).",
        "Death: 5.9 % (95 % interval 4.7 to 7.3 %); all analysed patients 2.4 %.",
    ]


def test_a_paragraph_of_few_patients_has_no_figure():
    few = tables.Phenotype(1, 1.0, "<10", HEART.codes, HEART.outcomes)
    assert prose.paragraph(few, TABLE, "stays") == ["Fewer than ten stays."]
    most = tables.Phenotype(1, 1.0, "nearly all", {}, {})
    assert prose.paragraph(most, TABLE, "stays") == ["Nearly all stays."]
    for hidden, said in ("<10", "fewer than ten"), ("hidden", "hidden, because"), (None, "fewer"):
        found = prose.rate(tables.Association(rate=hidden), 0.024, "stays")
        assert found.startswith(said)
        assert found.endswith("; all analysed stays 2.4 %")
        assert "among" not in prose.rate(tables.Association(rate=hidden), "<10", "stays")
    none = prose.rate(tables.Association(rate="<10"), 0.024, "stays", 4_359.0)
    assert none == "fewer than ten, a rate of at most 0.3 %; all analysed stays 2.4 %"  # 0.206


@pytest.mark.parametrize("hidden", ["<10", "hidden"])
def test_a_span_covers_all_sites_or_is_not_said(hidden):
    def said(**sites):
        spread = tables.Phenotype(1, 1.0, 0.02, {}, {}, sites)
        return prose.paragraph(spread, tables.PhenotypeTable(1000, ()), "patients")

    assert said(a=0.01, b=0.05) == ["20 patients (2.0 %, from 1.0 % to 5.0 % by site)."]
    assert said(a=0.03, b=0.05, c=hidden) == ["20 patients (2.0 %)."]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Acute MYOCARDIAL infarction", "heart attack"), ("Crbl art oc wo infrct", "stroke"),
        ("DM: uncomplicated", "diabetes"), ("severe sepsis", "blood poisoning, sepsis"),
    ],
)  # fmt: skip
def test_people_search_by_their_own_words(text, word):
    assert word in prose.search_words(["Appendicitis", text])
    assert word not in prose.search_words(["Appendicitis", "Foot drop"])


def made(*phenotypes):
    """Return titles of phenotypes, given by mode as names of codes with their weights."""
    rows = {}
    for number, modes in enumerate(phenotypes, start=1):
        rows[number] = {}
        for mode, names in modes.items():
            own = dict.fromkeys(names, 1.0) if isinstance(names, tuple) else names
            rows[number][mode] = [
                CodeRow(number, "", mode, place, f"C-{name}", name, w, w / sum(own.values()), 2.0)
                for place, (name, w) in enumerate(own.items(), start=1)
            ]
    return list(prose.made_titles(rows).values())


def test_titles_put_diagnoses_before_treatments():
    own = {"procedures": ("Insertion of stent",), "diagnoses": ("Heart attack", "Heart failure")}
    assert made(own) == ["Heart attack or heart failure with insertion of stent"]
    own = {"drugs": ("Insulin",), "principal": {"A": 9, "B": 8, "C": 4, "D": 1}}
    assert made(own) == ["A, B or others with insulin"]
    assert made({"dx": {"A": 9, "B": 2}}) == ["A"]  # less than a third of the largest weight
    assert prose.leading_sentence({"dx": []}) == "Leading codes. dx: none."


def test_titles_leave_out_what_leads_many_phenotypes_unless_nothing_else_does():
    several = [{"dx": {name: 1.0, "Hypertension": 1.0}} for name in "ABCD"]
    assert made(*several, {"dx": ("Hypertension",)}) == ["A", "B", "C", "D", "Hypertension"]
    weak = [{"dx": {"Hypertension": 1.0, name: 0.4}, "px": (f"P{name}",)} for name in "ABCD"]
    assert made(*weak) == [f"P{name}" for name in "ABCD"]  # 0.4 is too small for a title


def test_no_two_phenotypes_have_one_title():
    pairs = (("Stroke", "A"), ("Stroke", "B"), ("C", "A"), ("D", "A"), ("E", "B"), ("F", "B"))
    found = made(*({"dx": pair} for pair in pairs))
    assert found == ["Stroke or A", "Stroke or B", "C", "D", "E", "F"]  # A and B are common
    assert made(*[{"dx": ("Stroke",)}] * 2) == ["Stroke (1)", "Stroke (2)"]
    assert made({"principal": ("Stroke",), "secondary": ("Stroke", "Coma")}) == ["Stroke with coma"]


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("Pneumonia, organism NOS", "pneumonia, organism"),
        ("Other and unspecified hyperlipidemia", "hyperlipidemia"),
        ("Atrial fibrillation, unspecified site", "atrial fibrillation"),
        ("infectious|sepsis|sepsis|severe", "sepsis – severe"),
        ("AMI of wall", "AMI of wall"),  # a capital that does not begin a sentence stays
        ("NOS", "C1"),
        ("", "C1"),
    ],
)
def test_a_codes_name_is_said_without_fillers(description, said):
    assert prose.phrase(description, "C1") == said


def test_a_deployment_shows_what_the_server_knows():
    assert prose.headline(replace(DEPLOYED, sites=1)) == [
        ("run", "job-1: 1 site, 4 rounds, 12 phenotypes"),
        ("privacy", NO_CLAIM),
        (
            "sent",
            "1.23 MB up, 999 B down (for the same rounds, the paper's scheme takes 2 GB, "
            "and TRIP 3 GB)",
        ),
        ("time", "2 h 5 min"),
    ]


def test_a_simulation_shows_what_was_measured():
    shown = dict(prose.headline(SIMULATED))
    assert shown["privacy"] == (
        "epsilon 4.000 at delta 1e-05 (Gaussian DP; replacing a patient's record: 9.086) "
        f"[{PATIENT_CLAIM}]"  # rounded up
    )
    assert shown["fit"] == "−1.2 % of the data, RMSE 0.005145 over all cells, 0.124 over non-zeros"
    assert shown["factor match"] == "0.974 of 1 with the planted phenotypes"
    assert shown["death"] == (
        "AUC 0.788 ± 0.012 from phenotypes, 0.812 from raw codes, 0.600 from volume"
    )
    assert shown["time"] == "2 h 5 min in rounds; the sites' solvers took 0.5 s in all"
    assert "failures" not in shown
    assert "readmission" not in shown
    shared = replace(SIMULATED, spent=replace(SIMULATED.spent, alone=9.0003))
    assert dict(prose.headline(shared))["privacy"].endswith("; if all others collude: 9.001")


def test_phenotypes_that_are_likely_real_are_counted_unless_the_model_is_noise():
    known = replace(SIMULATED, false_discovery=(0.02, 0.1, 0.11))
    says = "likely real, judged by this run's own noise: 2 of 3 phenotypes"
    assert dict(prose.headline(known))["certainty"] == says
    alone = dict(prose.headline(replace(SIMULATED, rank=1, false_discovery=(0.02,))))
    assert alone["certainty"].endswith(" 1 of 1 phenotype")
    none = dict(prose.headline(replace(SIMULATED, false_discovery=(0.2, 0.5))))["certainty"]
    assert none.endswith("phenotypes; more may be at a lower rank, which auto-rank looks for")
    noise = replace(MEASURED, fit_shared=1e-6, fit_frequencies=1e-3)
    assert "certainty" not in dict(prose.headline(replace(known, measured=noise)))
    assert "certainty" not in dict(prose.headline(SIMULATED))


@pytest.mark.parametrize(
    ("failures", "never", "says"),
    [
        (2, (), "2 of the sites' replies"),
        (0, ("north",), "0 of the sites' replies; no round with north"),
        (1, ("north", "south"), "1 of the sites' replies; no round with north, south"),
    ],
)
def test_failures_are_named(failures, never, says):
    exchange = replace(SIMULATED.exchange, failures=failures)
    measured = replace(MEASURED, sites_without_a_round=never)
    summary = replace(SIMULATED, exchange=exchange, measured=measured)
    assert dict(prose.headline(summary))["failures"] == says


@pytest.mark.parametrize("mode", ["none", "paper", "patient"])
def test_every_mode_names_its_ways_out_of_noise(mode):
    measured = replace(MEASURED, fit_shared=1e-6, fit_frequencies=1e-3)
    text = prose.uninformative_message(replace(SIMULATED, privacy=mode, measured=measured))
    assert "What can help: " in text
    assert "0.1" in text
    assert prose.uninformative_message(DEPLOYED) == prose.uninformative_message(SIMULATED) == ""
