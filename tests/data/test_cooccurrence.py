import itertools
import logging
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfact_flower.data.clinical_events import Options, add_events, table_of
from dpfact_flower.data.cooccurrence import MINUTES_A_DAY, Window, build_cohort, choose_vocabularies
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from tests.data.readers.cells import cells_of

MODES = ("procedures", "diagnoses", "drugs")
CODES = ("01", "1", "x")
DAY = MINUTES_A_DAY


def fill(connection, patients, events, descriptions=()):
    """Replace a reader's tables. The patients' third field says who died."""
    for table in ("read_report", "people", "codes", "labelled"):
        connection.execute(f"DELETE FROM {table}")
    for mode in MODES:
        connection.execute(f"DROP TABLE IF EXISTS {table_of(mode)}")
    for table, columns, rows in (
        ("patients", "patient VARCHAR, site VARCHAR, died BOOLEAN", patients),
        ("rows", "mode TEXT, patient TEXT, encounter TEXT, time BIGINT, code TEXT", events),
        ("descriptions", "mode VARCHAR, code VARCHAR, description VARCHAR", descriptions),
    ):
        connection.execute(f'CREATE OR REPLACE TEMP TABLE "{table}" ({columns})')
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
    connection.execute("INSERT INTO labelled SELECT 'died', if(died, patient, NULL) FROM patients")
    for mode in MODES:
        add_events(connection, mode, f"(FROM rows WHERE mode = '{mode}')")


def build(connection, modes=MODES[:2], window=None, labels=(), **options):
    given = {"vocabularies": [Vocabulary(mode, CODES) for mode in modes]} | options
    return build_cohort(connection, "c", modes, window or Window(), Options(**given), labels)


def in_window(events, window):
    """The definition: what lacks what the window needs is in no window."""
    encounters, times, _ = zip(*events, strict=True)
    if window.same_encounter and (None in encounters or len({*encounters}) > 1):
        return False
    if window.days is None:
        return True
    return None not in times and max(times) - min(times) <= window.days * DAY


def reference(sites, events, modes, window):
    """Count cells with plain loops over all tuples of distinct events of one patient."""
    cells = Counter()
    for patient, site in sites.items():
        mine = [{event[2:] for event in events if event[:2] == (mode, patient)} for mode in modes]
        for chosen in itertools.product(*mine):
            known = all(code in CODES for *_, code in chosen)
            if known and in_window(chosen, window):
                cells[(site, patient, *(code for *_, code in chosen))] += 1
    return cells


event = st.tuples(
    st.sampled_from(MODES),
    st.sampled_from(["p1", "p2", "p3"]),
    st.sampled_from(["e1", "e2", None]),
    st.sampled_from([0, 5, 2 * DAY, 2 * DAY + 1, 2 * DAY + 5, 9 * DAY, None]),
    st.sampled_from([*CODES, "not in the vocabulary"]),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [Window(), Window(2), Window(2, same_encounter=True)],
    ids=["encounter", "days", "both"],
)
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    modes=st.sampled_from([MODES[:1], MODES[:2], MODES]),
    events=st.lists(event, min_size=8, max_size=40),
)
def test_counts_are_those_of_the_definition(connection, modes, window, events):
    sites = {"p1": "north", "p2": "south", "p3": "north"}
    fill(connection, [(patient, site, False) for patient, site in sites.items()], events)
    expected = reference(sites, events, modes, window)
    if not expected:
        with pytest.raises(DataError, match=r"no patient has an event|a code of the given list"):
            build(connection, modes, window)
        return
    assert cells_of(build(connection, modes, window)) == expected


EVENTS = [
    *(("procedures", f"p{n}", "e", 0, "01") for n in range(6)),
    *(("diagnoses", f"p{n}", "e", 0, "x") for n in range(5)),
]
PATIENTS = [(f"p{n}", "big" if n < 3 else f"small-{n}", n % 2 == 0) for n in range(6)]


@pytest.fixture
def filled(connection):
    fill(connection, PATIENTS[::-1], EVENTS)
    return connection


def test_patients_without_a_cell_are_left_out_with_their_labels(filled, caplog):
    with caplog.at_level(logging.INFO):
        cohort = build(filled, labels=["died"])
    assert [r.levelname for r in caplog.records if "no window" in r.message] == ["WARNING"]
    assert [(s.name, s.patients, s.labels["died"].tolist()) for s in cohort.sites] == [
        ("big", ("p0", "p1", "p2"), [1, 0, 1]),
        ("small-3", ("p3",), [0]),
        ("small-4", ("p4",), [1]),
    ]
    assert "patients: left out, since no window holds a code of each mode: 1" in caplog.text
    assert cohort.read_report[-6:] == (
        ("patients", "in the tables", 6),
        ("patients", "left out, since no window holds a code of each mode", 1),
        ("sites", "left out, since none of their patients is kept", 1),
        ("patients", "kept", 5),
        *((mode, "events of these codes and patients", 5) for mode in MODES[:2]),
    )


def test_small_sites_are_merged(filled):
    cohort = build(filled, labels=["died"], min_patients=2)
    sites = {site.name: site.patients for site in cohort.sites}
    assert sites == {"big": ("p0", "p1", "p2"), "other": ("p3", "p4")}
    np.testing.assert_array_equal(cohort.sites[1].labels["died"], [0, 1])
    fill(filled, [(who, at.replace("big", "other"), died) for who, at, died in PATIENTS], EVENTS)
    with pytest.raises(DataError, match="small sites are merged into other, but a site has this"):
        build(filled, min_patients=2)


def test_site_names_are_made_fit_to_stand(connection):
    names = {"Med-Surg ICU": "Med-Surg-ICU", " ../x": "x", "süd": "sud", "": "unknown",
             None: "unknown", "北京": "site-692e9266"}  # fmt: skip
    for raw, expected in names.items():
        fill(connection, [("p", raw, None)], [(mode, "p", "e", 0, "x") for mode in MODES[:2]])
        cohort = build(connection)
        assert cohort.sites[0].name == expected
        assert ("sites: patients of 'süd', renamed sud: 1" in repr(cohort)) == (raw == "süd")


@pytest.mark.parametrize("names", [("süd", "sud"), ("a b", "a-b"), ("North", "north")])
def test_two_names_never_become_one(names, connection):
    patients = [(f"p{n}", name, None) for n, name in enumerate(names)]
    events = [(mode, who, "e", 0, "x") for who in ("p0", "p1") for mode in MODES[:2]]
    fill(connection, patients, events)
    with pytest.raises(DataError, match="would all be named"):
        build(connection)


def test_vocabularies_by_frequency_count_distinct_events_of_these_patients(connection):
    fill(
        connection,
        [("p", "north", None), ("q", "north", None)],
        [
            *[("procedures", "p", "e", 0, "repeated")] * 5,
            ("procedures", "p", "e", 0, "often"),
            ("procedures", "q", "e", 0, "often"),
            ("procedures", "p", "e", 0, "b"),
            ("procedures", "p", "e", 0, "a"),
            *[("procedures", "nobody", f"e{n}", 0, "foreign") for n in range(9)],
            ("diagnoses", "p", "e", 0, "01"),
            ("diagnoses", "p", "e", 0, None),
        ],
        [("procedures", "often", "told"), ("diagnoses", "often", "another's")],
    )
    procedures, diagnoses = choose_vocabularies(connection, MODES[:2], Options(top=(3, None)))
    assert procedures.codes == ("often", "a", "b")
    assert procedures.descriptions == ("told", "", "")
    assert diagnoses.codes == ("01",)


def test_windows_and_options_are_checked():
    for days in (-1, 1.5, True, "30"):
        with pytest.raises(SettingsError, match="window days"):
            Window(days=days)
    assert Window(0) == Window(None, same_encounter=False) == Window(None, same_encounter=True)
    assert Window(np.int64(7)) == Window(7)
    for least in (0, 1.5, True):
        with pytest.raises(SettingsError, match="min-patients"):
            Options(min_patients=least)
