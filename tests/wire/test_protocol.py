"""Messages: exact round trips, and refusals of all other content."""

import dataclasses
import math
from dataclasses import replace
from typing import get_type_hints

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from dpfact_flower import errors
from dpfact_flower.errors import DPFactError, MessageError
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site.disclosure import public_reason
from dpfact_flower.wire.packing import pack
from dpfact_flower.wire.protocol import PROTOCOL_VERSION, RoundRequest, SiteReply
from dpfact_flower.wire.secure import SecureStage
from tests.bits import assert_bits
from tests.test_settings import BAD_NAMES, another

SECRET = 987654
RANK = 3
SHAPES = [(5, RANK), (4, RANK)]
SELECTION = (np.array([0, 2, 3, 7, 9], np.int32), np.array([1, 2, 5, 6], np.int32))


def make_factors(seed=0, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def make_request(**changes) -> RoundRequest:
    request = RoundRequest(
        job="job-1", round=2, rounds=5, seed=7,
        solver=SolverSettings(RANK, "psgd", eta=1e-3, gamma=5.0, clip=1.0),
        privacy=PrivacySettings(privacy="paper"),
        vocabulary="0a,1b", anchors=make_factors(), rule="elastic",
    )  # fmt: skip
    return replace(request, **changes)


def make_patient_request(**changes) -> RoundRequest:
    """Return a request of patient mode after the code counts, with factors and selection."""
    privacy = PrivacySettings(start_share=0.8, refine_rounds=1, bound=0.1, codes="5x4")
    given = {"solver": SolverSettings(rank=RANK), "privacy": privacy, "selection": SELECTION}
    return make_request(**{**given, **changes})


def through_flower(arrays, config):
    """Return the same message after Flower has written it to bytes and read it again."""
    content = RecordDict({"a": ArrayRecord(list(arrays)), "c": ConfigRecord(dict(config))})
    message = recorddict_to_proto(content)
    found = recorddict_from_proto(type(message).FromString(message.SerializeToString()))
    return found["a"].to_numpy_ndarrays(), found["c"]


def as_they_are(arrays, config):
    return arrays, config


carried = pytest.mark.parametrize("carry", [as_they_are, through_flower])


def assert_equal(found: RoundRequest, expected: RoundRequest) -> None:
    for field in dataclasses.fields(RoundRequest):
        value, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name in ("anchors", "selection"):
            assert_bits(value, other)
        else:
            assert value == other
            assert type(value) is type(other)


def refused(call, *arguments) -> str:
    with pytest.raises(MessageError) as caught:
        call(*arguments)
    assert str(SECRET) not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    return str(caught.value)


def reply_refused(arrays, shapes=SHAPES) -> str:
    return refused(SiteReply.from_wire, arrays, {"site": "north"}, shapes)


STARTS = {1: {"anchors": ()}, 2: {"anchors": (), "selection": SELECTION}}
NONE = PrivacySettings(privacy="none")
REQUESTS = {
    "paper": make_request(),
    "codes": make_patient_request(anchors=(), selection=()),
    "start after codes": make_patient_request(anchors=()),
    "refinement after codes": make_patient_request(),
    "refinement of whole vocabularies": make_patient_request(selection=()),
    **{f"start {n}": make_request(privacy=NONE, round=n, **own) for n, own in STARTS.items()},
}


@carried
@pytest.mark.parametrize("sent", REQUESTS.values(), ids=REQUESTS)
def test_request_round_trip(carry, sent):
    found = RoundRequest.from_wire(*carry(*sent.to_wire()))
    assert_equal(found, sent)
    assert found.digest == sent.digest
    assert found.terms == sent.terms


# A vector may have larger values than a factor. Patient mode's last reply has only a name.
VECTOR = np.linspace(-1e15, 1e15, 45).astype(np.float32)


@carried
@pytest.mark.parametrize(
    "arrays", [make_factors(), (VECTOR,), ()], ids=["factors", "vector", "nothing"]
)
def test_reply_round_trip(carry, arrays):
    shapes = [array.shape for array in arrays]
    found = SiteReply.from_wire(*carry(*SiteReply("north", arrays).to_wire()), shapes)
    assert found.site == "north"
    assert_bits(found.arrays, arrays)


def test_a_reply_beyond_its_limit_is_refused():
    assert "beyond 1e+06" in reply_refused([VECTOR.reshape(15, 3)], [(15, 3)])
    assert "beyond 1e+15" in reply_refused([2 * VECTOR], [(45,)])


def test_arrays_in_another_order_of_memory_are_made_contiguous():
    fortran = [np.asfortranarray(factor) for factor in make_factors()]
    assert not fortran[0].flags.c_contiguous
    found = RoundRequest.from_wire(fortran, make_request().to_wire()[1]).anchors
    assert all(factor.flags.c_contiguous for factor in found)
    assert_bits(found, make_factors())


NEEDS = {
    "mu": {"relative_l21": 0.0},
    "rho": {"privacy": "paper"}, "codes": {"privacy": "patient"}, "clip": {"solver": "psgd"},
    "secure_sums": {"privacy": "patient"},
}  # fmt: skip


def changed_settings(settings):
    """Yield the same settings with one changed field, for each field that may change alone."""
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        if any(getattr(settings, k) != v for k, v in NEEDS.get(field.name, {}).items()):
            continue
        value = another(field, hints[field.name], getattr(settings, field.name))
        yield replace(settings, **{field.name: value})


def changes_of_job(base):
    """Yield a change of each setting that must stay the same in a job."""
    yield from ({"job": "job-2"}, {"rounds": 6}, {"seed": 8}, {"vocabulary": "0a,1c"})
    for solver in changed_settings(base.solver):
        yield {"solver": solver}
    for privacy in changed_settings(replace(base.privacy, codes="")):
        yield {"privacy": privacy}


def changes_of_anchors(base):
    first, second = base.anchors
    for anchors in ((second, first), (first,), (first.reshape(RANK, 5), second),
                    (first[:4], np.vstack([first[4:], second]))):  # fmt: skip
        yield {"anchors": anchors}
    for mode in (0, 1):
        anchors = [anchor.copy() for anchor in base.anchors]
        anchors[mode][-1, -1] = np.nextafter(anchors[mode][-1, -1], np.float32(9))
        yield {"anchors": tuple(anchors)}


def changes_of_selection(base):
    first, second = base.selection
    empty, usages = {"anchors": ()}, np.ones((2, 2, 3))
    yield from (empty, {"selection": ()}, {"selection": (), **empty}, {"usages": usages},
                {"usages": 2 * usages})  # fmt: skip
    for selection in ((second, first), (first,),
                      (first[:4], np.concatenate([first[4:], second]))):  # fmt: skip
        yield {"selection": selection}
    for mode in (0, 1):
        selection = [kept.copy() for kept in base.selection]
        selection[mode][-1] += 1
        yield {"selection": tuple(selection)}


@pytest.mark.parametrize(
    ("base", "own"),
    [(make_request(), changes_of_anchors), (make_patient_request(), changes_of_selection)],
    ids=["factors", "patient"],
)
def test_the_digest_changes_with_everything_that_is_asked(base, own):
    others = [replace(base, **each) for each in ({"round": 3}, *changes_of_job(base), *own(base))]
    assert len({request.digest for request in (base, *others)}) == 1 + len(others) > 18


def test_the_terms_change_with_what_must_stay_the_same_and_with_nothing_else():
    base = make_patient_request()
    usages, stage = np.ones((2, 2, 3)), SecureStage("keys", asked=("a",))
    for changes in ({"round": 3}, {"anchors": ()}, {"selection": ()}, {"usages": usages},
                    {"secure": stage}):  # fmt: skip
        assert replace(base, **changes).terms == base.terms
    terms = [base.terms, *(replace(base, **changes).terms for changes in changes_of_job(base))]
    assert len(set(terms)) == len(terms)


def test_the_digest_is_of_values_not_of_objects():
    request = make_request()
    anchors = tuple(np.asfortranarray(anchor) for anchor in request.anchors)
    assert replace(request, anchors=anchors).digest == request.digest


BAD_CONFIGS = {
    "not DPFact": {"protocol": None},
    "later version": {"protocol": PROTOCOL_VERSION + 1},
    "version as float": {"protocol": 1.0},
    "version that fills a log": {"protocol": "\n" + "x" * 10_000},
    "job number": {"job": SECRET},
    **{f"round {value}": {"round": value} for value in (0, -3, 2.0, 6)},
    **{f"{key} {value}": {key: value} for key, value in (
        ("rounds", 0), ("seed", -1), ("vocabulary", 3), ("rank", 0), ("rank", 3.0),
        ("eta", math.nan), ("eta", 1.5), ("gamma", math.inf), ("nonnegative", 1), ("clip", 0.0),
        ("privacy", "trust-me"), ("epsilon", 0.0), ("delta", 1.0), ("noise-seed", -2),
    )},
    **{f"job {name!a}": {"job": name} for name in ("", *BAD_NAMES)},
    "usages beyond float64": {"usages": f"[[[{10**400}]]]"},
}  # fmt: skip


@pytest.mark.parametrize("changes", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_request_is_refused(changes):
    arrays, config = make_request().to_wire()
    assert next(iter(changes)) in refused(RoundRequest.from_wire, arrays, {**config, **changes})


@pytest.mark.parametrize("key", [k for k in make_request().to_wire()[1] if k != "vocabulary"])
def test_every_key_must_be_there(key):
    # This includes settings with a default, because the site's and the server's may differ.
    arrays, config = make_request().to_wire()
    del config[key]
    assert key in refused(RoundRequest.from_wire, arrays, config)


def test_a_text_that_is_empty_does_not_travel():
    """Flower's mods cannot measure empty strings, so a missing string counts as empty."""
    empty = replace(make_request(), vocabulary="")
    arrays, config = empty.to_wire()
    assert "" not in config.values()
    assert RoundRequest.from_wire(arrays, config).digest == empty.digest


BAD_ARRAYS = {
    "float64": ("need float32, got float64", make_factors()[1].astype(np.float64)),
    "big-endian": ("need float32", make_factors()[1].astype(">f4")),
    "int64": ("need float32, got int64", np.full((4, RANK), SECRET, np.int64)),
    "1-D": ("need shape (features, 3), got (12,)", make_factors()[1].ravel()),
    "other rank": ("got (4, 2)", make_factors()[1][:, :2]),
    "no rows": ("got (0, 3)", make_factors()[1][:0]),
    "empty": ("got (0,)", np.empty(0, np.float32)),
    "NaN": ("has values that are not finite", np.where(np.eye(4, RANK), np.nan, 1).astype("f4")),
    "inf": ("has values that are not finite", np.where(np.eye(4, RANK), np.inf, 1).astype("f4")),
}


@pytest.mark.parametrize(("says", "bad"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_a_bad_array_is_refused_by_its_mode(says, bad):
    arrays = [make_factors()[0], bad]
    message = refused(RoundRequest.from_wire, arrays, make_request().to_wire()[1])
    assert message.startswith("request, mode 2: ")
    assert says in message
    message = reply_refused(arrays)
    if bad.shape == SHAPES[1]:
        assert message.startswith("reply of site 'north', array 2: ")
        assert says in message
    else:  # the expected shape is known, so it is checked first
        assert message.startswith(f"reply of site 'north': need shapes {SHAPES}, got ")


def test_the_solver_settings_in_a_request_are_resolved():
    arrays, config = make_request().to_wire()
    assert RoundRequest.from_wire(arrays, {**config, "gamma": -1.0}).solver == make_request().solver


def test_what_is_no_array_is_refused():
    for bad in ([[float(SECRET)] * RANK] * 4, None):
        arrays = [make_factors()[0], bad]
        said = refused(RoundRequest.from_wire, arrays, make_request().to_wire()[1])
        assert "need arrays, got" in said
        assert "need arrays, got" in reply_refused(arrays)


@pytest.mark.parametrize(
    ("mode", "asked", "number"),
    [("none", 1, 2), ("none", 2, 1), ("none", 2, 3), ("paper", 1, 1), ("paper", 2, 2)],
)
def test_a_start_is_asked_for_in_its_round_and_in_mode_none_alone(mode, asked, number):
    request = make_request(privacy=PrivacySettings(privacy=mode), round=number, **STARTS[asked])
    message = refused(RoundRequest.from_wire, *request.to_wire())
    assert "need one float32 array per feature mode" in message


@pytest.mark.parametrize(
    "arrays",
    [[], [*make_factors(), *SELECTION], list(SELECTION),
     [make_factors()[0], np.full((4, RANK), SECRET, np.int32)]],
    ids=["nothing", "factors and a selection", "a selection", "integers among the factors"],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["none", "paper"])
def test_without_patient_mode_a_request_is_one_factor_a_mode(arrays, mode):
    config = make_request(privacy=PrivacySettings(privacy=mode), round=3).to_wire()[1]
    message = refused(RoundRequest.from_wire, arrays, config)
    assert "need one float32 array per feature mode" in message


BAD_CODES = {
    "empty": [], "negative": [-1, 2], "a code twice": [1, 1, 2], "2-D": [[0]],
    "descending by an overflow": [2**31 - 1, -(2**31)],
}  # fmt: skip
BAD_SELECTIONS = {
    **{why: ("selection, mode 2: ", [SELECTION[0], np.array(codes, np.int32)])
       for why, codes in BAD_CODES.items()},
    "int64": ("need float32, got int64", [kept.astype("i8") for kept in SELECTION]),
    "big-endian": ("need float32, got >i4", [kept.astype(">i4") for kept in SELECTION]),
    "weights too": ("need shape (features, 3), got (5,)", [*SELECTION, np.ones(5, np.float32)]),
    "NaN too": ("not finite", [*SELECTION, np.array([1, np.nan], np.float32)]),
    "a number too": ("need shape (features, 3), got ()", [*SELECTION, np.array(1, np.float32)]),
    "an integer too": ("selection, mode 3: ", [*SELECTION, np.array(1, np.int32)]),
    "no number too": ("need shape (features, 3), got (0,)", [*SELECTION, np.empty(0, np.float32)]),
}  # fmt: skip


@pytest.mark.parametrize(("says", "kept"), BAD_SELECTIONS.values(), ids=BAD_SELECTIONS)
@pytest.mark.parametrize("factors", [True, False], ids=["with factors", "without"])
def test_a_selection_that_makes_no_sense_is_refused(says, kept, factors):
    request = make_patient_request()
    arrays = [*(request.anchors if factors else ()), *kept]
    assert says in refused(RoundRequest.from_wire, arrays, request.to_wire()[1])


@pytest.mark.parametrize(
    "shapes", [[], SHAPES[:1], [*SHAPES, (2, RANK)], [(5, RANK), (5, RANK)]], ids=str
)
def test_a_reply_of_other_shapes_is_refused(shapes):
    assert reply_refused(list(make_factors(shapes=shapes))).startswith("reply of site 'north': ")
    assert f"need shapes {shapes}" in reply_refused(list(make_factors()), shapes)


@carried
def test_packed_bytes_come_back_as_the_vector_that_was_sent(carry):
    vector = (np.random.default_rng(0).integers(-800, 800, 3000) * 0.25).astype(np.float32)
    arrays, config = carry(*SiteReply("north", (vector,), 0.25).to_wire())
    assert arrays[0].dtype == np.uint8
    assert arrays[0].nbytes < vector.nbytes / 2
    assert SiteReply.from_wire(arrays, config, [(3000,)]).arrays[0].tobytes() == vector.tobytes()
    # Without a step, or off the grid, values are sent unpacked, and so are factors.
    for reply in (SiteReply("north", (vector,)), SiteReply("north", (vector,), 0.3),
                  SiteReply("north", (np.zeros((30, 3), np.float32),), 0.25)):  # fmt: skip
        assert all(array.dtype == np.float32 for array in reply.to_wire()[0])


@pytest.mark.parametrize(
    "array",
    [np.zeros(0, np.uint8), np.zeros((3000, 1), np.uint8), np.zeros(500, np.int8),
     np.array(["x" * 500]), np.array([None] * 5, object)],
    ids=["empty", "a matrix", "other integers", "text", "objects"],
)  # fmt: skip
def test_bytes_that_are_no_packed_vector_are_refused(array):
    assert reply_refused([array], [(3000,)]).startswith("reply of site 'north'")
    reply_refused([array, array])


def test_a_packed_vector_beyond_the_limit_is_refused():
    packed = pack((np.arange(3000) * 2.0**40).astype(np.float32), 2.0**40).copy()
    assert "beyond 1e+15" in reply_refused([packed], [(3000,)])
    packed[:8] = np.array([1e300]).view(np.uint8)
    assert "not finite" in reply_refused([packed], [(3000,)])


BAD_SITES = {
    "missing": {}, "number": {"site": SECRET}, "list": {"site": ["north"]}, "None": {"site": None},
    **{ascii(name): {"site": name} for name in ("", *BAD_NAMES)},
}  # fmt: skip


@pytest.mark.parametrize("config", BAD_SITES.values(), ids=BAD_SITES)
def test_a_reply_of_a_site_without_a_proper_name_is_refused(config):
    assert refused(SiteReply.from_wire, list(make_factors()), config, SHAPES).startswith("site: ")


FAMILY = [kind for kind in vars(errors).values()
          if isinstance(kind, type) and issubclass(kind, DPFactError)]  # fmt: skip


@pytest.mark.parametrize("kind", [*FAMILY, ValueError, MemoryError, KeyboardInterrupt])
def test_a_public_reason_is_a_code_and_nothing_of_the_error(kind):
    reason = public_reason(kind(f"patient {SECRET} has a cell"))
    code = getattr(kind, "code", "internal")
    assert reason == f"dpfact:{code} (details are in the site's own log)"
    assert len({each.code for each in FAMILY}) == len(FAMILY)
