"""The accepted forms of a site."""

import ast

import duckdb
import numpy as np
import pandas as pd
import pytest
import pyttb

from dpfact_flower import DPFactPhenotyper, read_events
from dpfact_flower.data.tables import Dialect
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.notebook.federated import as_cohort
from tests.data.readers.cells import cells_of

pytestmark = pytest.mark.slow

EVENTS = pd.DataFrame(
    [
        ("ann", "procedures", "P1", "2024-03-01", "north"),
        ("ann", "diagnoses", "D1", "2024-03-05", "north"),
        ("ann", "diagnoses", "D2", "2024-06-05", "north"),  # too late for P1
        ("bob", "procedures", "P1", "2024-03-01", "south"),
        ("bob", "diagnoses", "D2", "2024-03-01", "south"),
    ],
    columns=["patient", "mode", "code", "time", "site"],
)
HERE = EVENTS.drop(columns="site")


BY_SITE = {("north", "ann", "P1", "D1"): 1, ("south", "bob", "P1", "D2"): 1}


def test_events_that_lie_close_together_are_cells():
    found = cells_of(read_events(HERE, "here", dialect=Dialect()))
    assert found == {("here", "ann", "P1", "D1"): 1, ("here", "bob", "P1", "D2"): 1}


@pytest.mark.parametrize("time", [str, pd.to_datetime])
def test_a_column_of_sites_makes_sites(time):
    assert cells_of(read_events(EVENTS.assign(time=EVENTS["time"].map(time)))) == BY_SITE


def as_polars(frame):
    return pytest.importorskip("polars").DataFrame(frame.to_dict("list"))


def as_arrow(frame):
    return pytest.importorskip("pyarrow").table(frame.to_dict("list"))


@pytest.mark.parametrize("other", [lambda frame: frame, as_polars, as_arrow, duckdb.from_df])
def test_frames_are_sites_in_which_one_identifier_may_be_two_people(other, caplog):
    cohort = as_cohort({"a": other(HERE), "b": other(HERE[HERE["patient"] == "bob"])})
    *_, (where, what, again) = cohort.read_report
    assert (where, again) == ("patients", 1)
    assert f"{where}: {what}: 1" in caplog.text
    assert cells_of(cohort) == {
        ("a", "ann", "P1", "D1"): 1, ("a", "bob", "P1", "D2"): 1, ("b", "bob", "P1", "D2"): 1
    }  # fmt: skip
    assert cohort.sites[0].vocabularies == cohort.sites[1].vocabularies
    counts = pd.DataFrame({"D1": [1, 0, 2], "D2": [0, 3, 1]})
    (site,) = as_cohort(other(counts)).sites
    assert site.vocabularies[0].codes == ("D1", "D2")
    np.testing.assert_array_equal(site.tensor.to_dense(), counts)


def test_columns_of_counts_may_differ_in_type_but_must_be_complete():
    counts = pd.DataFrame({0: pd.array([1, 2], "Int64"), 1: [True, False], 2: [0.5, 3]})
    (site,) = as_cohort(counts).sites
    np.testing.assert_array_equal(site.tensor.to_dense(), [[1, 1, 0.5], [2, 0, 3]])
    for lacking in (counts.replace(2, pd.NA), duckdb.sql("SELECT NULL AS a, 5 AS b")):
        with pytest.raises(DataError, match=r"site site-1: (tensor|values): "):
            as_cohort(lacking)


NAMES = {"patient": "subject_id", "code": "ICD_Code", "time": "charttime"}


def test_columns_with_other_names_are_read_as_the_error_says():
    elsewhere = HERE.rename(columns=NAMES).assign(birth_date="1960-01-01", icd_version=9)
    with pytest.raises(DataError, match=r"it has \['subject_id', .*; try columns=") as caught:
        read_events(elsewhere)
    with pytest.raises(DataError, match="If the rows are events, read them with read_events"):
        as_cohort(elsewhere)
    with pytest.raises(SettingsError, match=r"columns: must be some of patient, code, .* got pat"):
        read_events(elsewhere, columns={"pat": "subject_id"})
    columns = ast.literal_eval(str(caught.value).partition("try columns=")[2])
    assert columns == NAMES
    elsewhere.index.name = "patient"
    assert cells_of(read_events(elsewhere, columns=columns)) == cells_of(read_events(HERE))
    numbered, columns = HERE.set_axis(range(4), axis=1), dict(zip(HERE, range(4), strict=True))
    assert cells_of(read_events(numbered, columns=columns)) == cells_of(read_events(HERE))


@pytest.mark.parametrize("other", [lambda frame: frame, as_polars, as_arrow, duckdb.from_df])
def test_columns_of_modes_and_sites_may_have_other_names_too(other):
    columns = {"mode": "Art", "site": "Klinik", "patient": "Fallnr"}
    elsewhere = other(EVENTS.rename(columns=columns))
    assert cells_of(read_events(elsewhere, columns=columns)) == BY_SITE
    assert cells_of(as_cohort(other(EVENTS))) == BY_SITE
    alike = EVENTS.rename(columns={"mode": "Mode ", "site": " SITE"})
    assert cells_of(read_events(other(alike), columns={"mode": " MODE", "site": "Site"})) == BY_SITE
    with pytest.raises(DataError, match=r"lacks the column\(s\) Haus; it has \['Fallnr'"):
        read_events(elsewhere, columns={**columns, "site": "Haus"})


def test_a_lazy_frame_must_be_collected():
    lazy = as_polars(EVENTS).lazy()
    for refused in (lambda: read_events(lazy), lambda: read_events(HERE, labels=lazy)):
        with pytest.raises(DataError, match=r"not a lazy frame: call its method collect\(\)"):
            refused()
    assert cells_of(read_events(lazy.collect().with_columns(encounter=None))) == BY_SITE


def test_times_in_another_form_are_read_with_a_format():
    german = HERE.assign(time=pd.to_datetime(HERE["time"]).dt.strftime("%d.%m.%Y"))
    with pytest.raises(DataError, match=r"14:05 \(or set time_format=\)"):
        read_events(german)
    assert cells_of(read_events(german, time_format="%d.%m.%Y")) == cells_of(read_events(HERE))


def test_a_frame_for_each_mode_does_as_well():
    tables = {mode: rows.drop(columns="mode") for mode, rows in HERE.groupby("mode", sort=False)}
    assert cells_of(read_events(tables)) == cells_of(read_events(HERE))


def test_an_encounter_may_be_the_window():
    frame = HERE.rename(columns={"time": "encounter"}).assign(encounter=[1, 1, 2, 3, 3])
    for days in (0, None):  # as with --window 0
        assert len(cells_of(read_events(frame, window_days=days))) == 2
    with pytest.raises(DataError, match=r"lacks the column\(s\) time; .* try window_days=0"):
        read_events(frame)


def test_what_is_counted_and_logged_names_frames(caplog):
    cohort = read_events(pd.concat([HERE, HERE.tail(1)]), "here")
    assert ("diagnoses", "repeated rows, each counted once", 1) in cohort.read_report
    assert not [place for place, *_ in cohort.read_report if "parquet" in place or "/" in place]
    assert "repeated rows, each counted once: 1" in caplog.text
    assert "/dpfact-" not in caplog.text


def test_frames_by_site_count_what_they_left_out():
    odd = HERE.assign(patient=["7", "7", "7", "007", "007"])
    cohort = as_cohort({"0north": pd.concat([HERE, HERE.tail(1)]), "0south": odd})
    assert [site.name for site in cohort.sites] == ["0north", "0south"]
    what = "identifiers like 1E+17, or that differ only in leading zeros, a final .0 or case"
    assert ("patients", what, 2) in cohort.read_report
    assert ("diagnoses", "repeated rows, each counted once", 1) in cohort.read_report
    with pytest.raises(DataError, match=r"site name: must be .* got '0/north'"):
        as_cohort({"0/north": HERE, "0south": odd})
    with pytest.raises(DataError, match="sites: b has no row; leave it out"):
        as_cohort({"a": HERE, "b": duckdb.from_df(HERE[:0])})
    with pytest.raises(DataError, match=r"^b: lacks the column\(s\) time; it has \['patient'"):
        as_cohort({"a": HERE, "b": HERE.drop(columns="time")})


@pytest.mark.parametrize(
    ("patients", "says"),
    [
        ([17.0, 17.0, 17.0, 18.0, 18.0], "must hold text, whole .* DOUBLE; .*missing value makes"),
        (["17", " 17", "17 ", "nan", ""], "column patient must be printable text"),
        (["17", "NA", "na", "18", "18"], "column patient must be printable text"),
        (["17", " 17", "17 ", "18", "18"], None),
    ],
)
def test_identifiers_of_frames_by_site_are_checked_like_those_of_one_frame(patients, says):
    frame = HERE.assign(patient=patients)
    if says is None:
        assert {s.name: s.patients for s in as_cohort({"a": frame, "b": frame}).sites} == {
            "a": ("17", "18"), "b": ("17", "18")
        }  # fmt: skip
        return
    for sites in (frame, {"a": frame, "b": frame}, {"a": HERE, "b": frame}):
        with pytest.raises(DataError, match=says):
            as_cohort(sites)
    blank = {"a": HERE.assign(description="x"), "b": HERE.assign(description=np.nan)}
    assert len(as_cohort(blank).sites) == 2


def test_no_object_in_a_column_is_changed_to_the_type_of_the_others():
    codes = pd.Series([250] * 2000, dtype=object)
    codes[1001], codes[1003] = 401.9, "00401"
    frame = pd.DataFrame({"patient": np.arange(2000) // 2, "mode": ["a", "b"] * 1000,
                          "code": codes, "time": "2024-01-01"})  # fmt: skip
    assert set(read_events(frame).vocabularies[1].codes) == {"250", "401.9", "00401"}
    with pytest.raises(SettingsError, match=r"modes: names must differ .* got a, A"):
        read_events(frame.replace({"mode": {"b": "A"}}))


def test_deaths_come_along():
    for values in ([1, 0], [1.0, 0.0]):  # pandas makes floats of a column that had blanks
        died = pd.DataFrame({"patient": ["bob", "ann"], "died": values})
        assert read_events(HERE, labels=died).sites[0].labels["died"].tolist() == [0, 1]
    with pytest.raises(DataError, match=r"labels of died: column died must be 0 or 1 .*; 1 row"):
        read_events(HERE, labels=died.replace(0.0, np.nan))
    with pytest.raises(DataError, match="labels of died: need a frame with columns, got list"):
        read_events(HERE, labels={"died": [1, 0]})


def test_what_is_wrong_is_said_by_the_frames_name_and_no_value():
    wrong = HERE.assign(time=["2024-03-01"] * 4 + ["yesterday"])
    with pytest.raises(DataError, match=r"^diagnoses: column time must be a date") as caught:
        read_events(wrong)
    assert "yesterday" not in str(caught.value)
    with pytest.raises(DataError, match=r"lacks the column\(s\) Kind; it has \['patient'"):
        read_events(HERE, columns={"mode": "Kind"})
    with pytest.raises(DataError, match=r"pass a DataFrame, .*; for files, use dpfact data"):
        read_events("events.csv", columns={"mode": "kind"})
    for frame, says in (
        (EVENTS.assign(site=["n", "s", "n", "s", "s"]), "sites: column site must be the same in"),
        (HERE.set_index(["mode", "code"]), r"events: code is in the index; call reset_index\(\)"),
        (HERE[:0], "events: has no row"),
        (HERE.assign(x=pd.Interval(0, 1)), r"columns of unusual types into text, .*astype\(str\)"),
        (HERE.drop(columns="mode"), r"need a DataFrame with a column mode .* got DataFrame .*'pat"),
        (pd.concat([HERE, HERE["code"]], axis=1), "events: two columns have the same name; rename"),
    ):
        with pytest.raises(DataError, match=says):
            read_events(frame)


GERMAN = {"patient": "Fallnr", "code": "ICD", "time": "Datum", "mode": "Art", "site": "Klinik"}


@pytest.mark.parametrize("other", [lambda frame: frame, duckdb.from_df])
@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("Fallnr", r"Fallnr must .*delete these rows first, in pandas .*dropna\(subset='Fallnr'\)"),
        ("ICD", r"column ICD must be printable text .*pandas with .*dropna\(subset='ICD'\)"),
        ("Art", "column Art must not be blank; 1 row"),
        ("Klinik", "column Klinik must be the same in all rows of a patient, or blank in all"),
    ],
)
def test_a_missing_value_is_refused_by_the_frames_own_name_with_a_way_out(other, column, says):
    frame = EVENTS.rename(columns=GERMAN)
    frame.loc[1, column] = None
    with pytest.raises(DataError, match=says):
        read_events(other(frame), columns=GERMAN)


@pytest.mark.parametrize(
    ("changes", "given", "says"),
    [
        ({}, {"columns": {**GERMAN, "code": "OPS"}},
         r"column\(s\) OPS; it has \['Fallnr', 'Art', 'ICD',"),
        ({}, {"time_format": "%Y-%m-%d"}, "or omit time_format= if it holds dates"),
        ({}, {"labels": EVENTS[["patient"]]},
         "labels={'LABEL': frame}, .* the columns Fallnr and LABE"),
        ({}, {"vocabularies": ["dx.csv"]}, "vocabularies: need a list, as in .Vocabulary"),
        ({}, {"vocabularies": Vocabulary("x", ("I",))}, "vocabularies: need a list, as in "),
        ({"ICD": 250.0}, {}, "column ICD must .*; read it as text, in pandas with dtyp"),
    ],
)  # fmt: skip
def test_a_newcomers_mistakes_have_a_way_out(changes, given, says):
    frame = EVENTS.rename(columns=GERMAN).assign(Datum=pd.Timestamp("2024-05-01"), **changes)
    with pytest.raises(DataError, match=says):
        read_events(frame, **{"columns": GERMAN, **given})


def test_a_public_list_says_which_codes_count():
    lists = [Vocabulary("procedures", ("P1",)), Vocabulary("diagnoses", ("D1", "D9"))]
    cohort = as_cohort([HERE], vocabularies=lists, keep_empty=True)
    assert cohort.patients == ("ann", "bob")
    assert cohort.sites[0].tensor.nnz == 1
    for given in (HERE[::-1], {"a": HERE[::-1], "b": HERE}):  # rows in any order
        assert as_cohort(given, vocabularies=lists).vocabularies == cohort.vocabularies


@pytest.mark.parametrize("fit", [as_cohort, DPFactPhenotyper(rank=2, privacy="none").fit])
def test_a_column_of_identifiers_is_no_code(fit):
    wide = pd.DataFrame({"Patient": [100_234, 100_235], "I21": [1, 0], "I50": [2, 1]})
    with pytest.raises(DataError, match=r"all columns are codes, not patient; .*set_index"):
        fit(wide)
    fit(wide.set_index("Patient"))
    with pytest.raises(DataError, match="need numbers in every column"):
        fit(wide.set_index("Patient").assign(admitted=pd.Timestamp("2024-05-31")))
    swapped = [Vocabulary("codes", ("I50", "I21"))]
    alone = DPFactPhenotyper(1, privacy="none", vocabularies=swapped[0]).fit
    for given in (lambda rows: as_cohort(rows, vocabularies=swapped[0]), alone):
        with pytest.raises(DataError, match="vocabularies: need a list"):
            given(wide.set_index("Patient"))
    fitted = DPFactPhenotyper(1, privacy="none", vocabularies=swapped).fit
    found = DPFactPhenotyper(1, privacy="none").fit([wide[["I50", "I21"]]])
    for given in (lambda rows: as_cohort(rows, vocabularies=swapped), fitted, found.transform):
        with pytest.raises(DataError, match="columns must be the vocabulary's codes, in its order"):
            given(wide.set_index("Patient"))
    of_arrays = DPFactPhenotyper(1, privacy="none").fit([np.eye(2)])
    assert of_arrays.transform(wide.set_index("Patient")).shape == (2, 1)


def test_tensors_are_sites_with_numbered_codes(cohort):
    tensor = cohort.sites[0].tensor
    there = pyttb.sptensor(tensor.indices, tensor.values[:, None], tensor.shape)
    found = as_cohort([tensor, there, tensor.to_dense()])
    assert [site.name for site in found.sites] == ["site-1", "site-2", "site-3"]
    assert {site.fingerprint for site in found.sites} == {tensor.fingerprint()}
    assert found.vocabularies[1].codes[:2] == ("x0", "x1")
    assert as_cohort(found) is found
    assert [site.name for site in as_cohort({"here": tensor}).sites] == ["here"]


@pytest.mark.parametrize("given", [[], {}, 3, "north", [3], [np.arange(3)]])
def test_what_is_no_site_is_refused(given):
    with pytest.raises(DataError, match="sites: need a Cohort"):
        as_cohort(given)


def test_sites_of_one_name_are_refused(cohort):
    site = cohort.sites[0]
    for given in ([site, site], {1: site, "1": site}):
        with pytest.raises(DataError, match=r"two are called (site-)?1;"):
            as_cohort(given)
