import dataclasses
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.data.vocabulary import Vocabulary, joint_digest, load_codes
from dpfact_flower.errors import DataError

CODES = ("0040", "40", "V45.81", "pulmonary|medications|é")


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary("procedures", CODES, ("a", "", 'with "quotes", comma', "ü\nline"))


def test_index_is_the_position_of_each_code(vocabulary):
    assert [vocabulary.index[code] for code in CODES] == [0, 1, 2, 3]
    assert Vocabulary("drugs", ("b", "c", "a")).index == {"b": 0, "c": 1, "a": 2}
    assert len(vocabulary) == 4


def test_digest_depends_on_name_codes_and_order_but_not_on_descriptions(vocabulary):
    same = dataclasses.replace(vocabulary, descriptions=())
    others = (
        dataclasses.replace(vocabulary, name="diagnoses"),
        Vocabulary("procedures", CODES[::-1]),
        Vocabulary("procedures", CODES[:3]),
        Vocabulary("procedures", ("0040", "40,V45.81", "x")),
        Vocabulary("procedures", ("0040", "40", "V45.81,x")),
    )
    assert same.digest == vocabulary.digest
    assert len({v.digest for v in (vocabulary, *others)}) == 1 + len(others)


def test_digest_is_the_same_in_every_version():
    # Sites with different releases must agree.
    expected = hashlib.sha256(b'["p","0040","\\u00e9"]').hexdigest()
    assert Vocabulary("p", ("0040", "é")).digest == expected


@given(
    codes=st.lists(
        st.text(st.characters(blacklist_categories=("C", "Z")), min_size=1), min_size=1, unique=True
    )
)
def test_json_round_trip(codes):
    vocabulary = Vocabulary("x", tuple(codes), tuple(code[::-1] for code in codes))
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


@pytest.mark.parametrize(
    ("name", "codes", "descriptions", "message"),
    [
        ("", ("a",), (), "vocabulary name"),
        ("../up", ("a",), (), "vocabulary name"),
        ("a\n", ("a",), (), "vocabulary name"),
        ("x", (), (), "at least one code"),
        ("x", ("a", "b", "a"), (), "position 2 is the same as at position 0"),
        ("x", ("a", " b"), (), "position 1"),
        ("x", ("a", ""), (), "position 1"),
        ("x", ("a\nb",), (), "position 0"),
        ("x", ("a", 40), (), "must be text"),
        ("x", "abc", (), "must be text"),
        ("x", ("a", "b"), ("one",), r"one description per code \(2\), got 1"),
        ("x", ("a",), (None,), "must be text"),
    ],
)
def test_refuses(name, codes, descriptions, message):
    with pytest.raises(DataError, match=message):
        Vocabulary(name, codes, descriptions)


def test_a_refused_code_is_not_quoted():
    with pytest.raises(DataError) as caught:
        Vocabulary("x", ("secret", "secret"))
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="vocabulary name: must be at most 64") as caught:
        Vocabulary.from_json('{"name": "secret patient", "codes": ["a"]}')
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}', '{"name": "x", "codes": 3}'])
def test_load_refuses_what_is_no_vocabulary(text, write):
    with pytest.raises(DataError, match=r"v\.json"):
        Vocabulary.load(write("v.json", text))


def test_select_keeps_the_order_asked_for(vocabulary):
    assert vocabulary.select([2, 0]).codes == (vocabulary.codes[2], vocabulary.codes[0])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("codes.txt", "# public list\n0040\n\n 40 \r\nV4581\n"),
        ("codes.csv", '\ufeffChapter,CODE\r\n1,"0040"\r\n1, 40\r\n2,V4581\r\n'),
        ("codes.json", '["0040", "40", "V4581"]'),
        ("codes.JSON", '{"name": "x", "codes": ["0040", "40", "V4581"]}'),
    ],
)
def test_load_codes_keeps_order_and_leading_zeros(file, text, write):
    assert load_codes(write(file, text), "x").codes == ("0040", "40", "V4581")


def test_load_codes_reads_descriptions(write):
    path = write("codes.csv", 'code,Description\n1,"two\nlines, one comma"\n2,\n3\n')
    assert load_codes(path, "x").descriptions == ("two\nlines, one comma", "", "")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("codes.csv", "icd,title\n1,a\n", r"lacks a column code .* it has 'icd, title'"),
        ("codes.csv", "code,Code\n1,2\n", "has the column 'code' twice"),
        ("codes.csv", 'code\n"' + "1\n" * 100_000, "not readable as CSV: is a quote open"),
        ("codes.csv", 'code,description\n1,"one\n2,two\n', "not readable as CSV: is a quote open"),
        ("codes.txt", "# nothing\n", "at least one code"),
        ("codes.json", '{"name": "y", "codes": ["1"]}', "'y', but 'x' is needed"),
        ("codes.json", "[1, 2]", "must be text"),
        ("codes.json", "nonsense", "not JSON"),
    ],
)
def test_load_codes_refuses(file, text, message, write):
    with pytest.raises(DataError, match=message) as caught:
        load_codes(write(file, text), "x")
    assert file in str(caught.value)


def test_load_codes_names_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"gone\.txt: no such file"):
        load_codes(tmp_path / "gone.txt", "x")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        load_codes(tmp_path / "latin.txt", "x")


@pytest.mark.parametrize("names", [("p", "p"), ("p", "p_text"), ("file", "p"), ("p", "modes")])
def test_names_that_clash_in_a_runs_file_are_refused_before_the_run(names):
    with pytest.raises(DataError, match=f"names must differ .* got {', '.join(names)}$"):
        joint_digest([Vocabulary(name, ("a",)) for name in names])
