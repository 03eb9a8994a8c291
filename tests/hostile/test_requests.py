"""Requests that no honest server sends, to the site and through the ClientApp."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Context, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfact_flower.client_app import DPFactClient, RoundRefusedError
from dpfact_flower.client_app import app as client_app
from dpfact_flower.data.site_data import open_site
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import SiteReply
from tests.hostile.strategies import ODD, damaged, odd_array
from tests.hostile.watch import SIZES, Watch, canary_site, check_sent, check_text
from tests.site.federation import LEAVES
from tests.wire.test_protocol import FAMILY

pytestmark = pytest.mark.slow

PRIVACIES = (
    PrivacySettings(start_share=0.7, refine_rounds=1, bound=0.1),
    PrivacySettings(start_share=0.7, refine_rounds=1, bound=0.1, codes="3x4"),
    PrivacySettings(privacy="none"),
)
CODES_KNOWN = {kind.code for kind in FAMILY} - {"internal"}
RUNS = 12
"""Number of honest runs within the site's cap. A ledger that only grows would slow the test."""
ODDITIES = ODD | st.sampled_from((
    (1,), set(), b"\xff" * 5000, np.float32(1), np.int64(3), np.array([1, 2]), object(), int,
    1 + 2j, 0, 1, 2, 7, 50, 51, 200, 201, 1e6, 2**31, 1e15, 10**4000,
))  # fmt: skip
KEYS = st.sampled_from(("privacy", "rule", "noise-seed", "codes", "x" * 5000, "__class__"))


class Asked(NamedTuple):
    """The parts of a request."""

    arrays: list[Any]
    config: dict[str, Any]


class Site(NamedTuple):
    """Node configs by mode, honest requests, and the results of all requests so far."""

    configs: dict[str, dict[str, Any]]
    honest: list[Asked]
    seen: Counter[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with recognisable patients, which has answered honest servers."""
    folder, data = tmp_path_factory.mktemp("hostile"), canary_site()
    data.save(folder / "north.npz")
    InProcessGrid(client_app, [{}], {})  # Flower's messages need a task
    configs = {
        mode: {"data-path": str(folder / "north.npz"), "state-dir": str(folder / f"state-{mode}"),
               "allow-privacy": mode, **cap}
        for mode, cap in (("patient", {"max-epsilon": 4.0 * RUNS**0.5}), ("none", {}))
    }  # fmt: skip
    honest = []
    for number, privacy in enumerate(PRIVACIES):
        own = configs[privacy.privacy] | {"state-dir": str(folder / f"honest-{number}")}
        client = DPFactClient(open_site(folder / "north.npz"), SiteSettings.from_config(own))
        server = Coordinator(
            SIZES, solver=SolverSettings(rank=3), privacy=privacy,
            run=RunSettings(job=f"run-{number}", rounds=3),
            vocabulary=data.vocabularies,
        )  # fmt: skip
        for turn in range(1, server.rounds + 1):
            honest.append(Asked(*server.request(turn).to_wire()))
            arrays, _, config = client.fit(*honest[-1])
            reply = SiteReply.from_wire(arrays, config, server.rule.reply_shapes(turn))
            server.close_round(turn, [reply], [], bytes_down=0, bytes_up=0, seconds=0.0)
    return Site(configs, honest, Counter())


@st.composite
def asked(draw, site: Site) -> Asked:
    """Draw an honest request, usually with a change."""
    honest = draw(st.sampled_from(site.honest))
    arrays, config = list(honest.arrays), dict(honest.config)
    config.pop("answered", None)  # from another site, with this site's settings
    config["job"] = f"run-{draw(st.integers(0, 3 * RUNS))}"
    for _ in range(draw(st.integers(0, 3))):
        change = draw(st.sampled_from(("value", "key", "array", "other", "order", "none")))
        key, place = draw(st.sampled_from(sorted(config))), draw(st.integers(0, len(arrays)))
        if change == "value":
            config[key] = draw(ODDITIES)
        elif change == "key":
            del config[key]
            config[draw(KEYS)] = draw(ODDITIES)
        elif change == "array" and isinstance(dict(enumerate(arrays)).get(place), np.ndarray):
            arrays[place] = draw(odd_array(arrays[place]))
        elif change == "other":
            arrays.insert(place, draw(ODDITIES))
        elif change == "order":
            arrays = arrays[place:] + arrays[: max(place - 1, 0)]
    return Asked(arrays, config)


@given(data=st.data())
@settings(suppress_health_check=[*HealthCheck])
def test_a_hostile_request_is_answered_or_refused_by_a_code(site, data):
    request = data.draw(asked(site))
    config = site.configs[data.draw(st.sampled_from(("patient", "patient", "patient", "none")))]
    client = DPFactClient(open_site(config["data-path"]), SiteSettings.from_config(config))
    with Watch():
        try:
            arrays, examples, reply = client.fit(*request)
        except RoundRefusedError as refusal:
            refused(str(refusal), site)
        else:
            site.seen["answered"] += 1
            check_sent(*arrays, reply)
            assert examples == 1
            assert set(reply) == {"site"}


@given(data=st.data())
@settings(suppress_health_check=[*HealthCheck])
def test_a_hostile_message_is_answered_or_refused_by_a_code(site, data):
    """Messages go through the ClientApp, some with damaged bytes."""
    arrays, config = data.draw(asked(site))
    try:
        content = records.ask([np.asarray(array) for array in arrays], config)
    except (TypeError, ValueError, KeyError, OverflowError):
        return  # Flower cannot make a message from it
    record = content["fitins.parameters"]
    for name in list(record):
        if data.draw(st.booleans()):
            record[name] = data.draw(odd_record(record[name]))
    if data.draw(st.sampled_from((False,) * 9 + (True,))):
        content = RecordDict({data.draw(st.sampled_from(("x", "fitins.config"))): ConfigRecord()})
    context = Context(1, 1, dict(site.configs["patient"]), RecordDict(), {})
    kind = data.draw(st.sampled_from(("train", "train", "query")))
    with Watch():
        reply = client_app(Message(content, 1, kind), context)
        if reply.has_error():
            refused(reply.error.reason, site)
        else:
            found = records.read_reply(reply)
            check_sent(*found.arrays, dict(found.config))


@st.composite
def odd_record(draw, array: Array) -> Array:
    """Change an array of a message so that its header and content differ."""
    shapes = (array.shape, array.shape, (10**12, 10**6), (-1,), (2**40,), (True, 3))
    dtypes = (array.dtype, array.dtype, "float32", "object", "x" * 3000)
    parts = dtypes, shapes, ("numpy.ndarray", "numpy.ndarray", "pickle")
    header = [draw(st.sampled_from(part)) for part in parts]
    return Array(*header, draw(st.just(array.data) | damaged(array.data)))


def refused(text: str, site: Site) -> None:
    """Check that a refusal contains only one of our codes."""
    found = LEAVES.fullmatch(text)
    assert found, text
    assert found[1] in CODES_KNOWN
    check_text(text)
    site.seen[found[1]] += 1


def test_requests_of_all_kinds_were_met(site):
    """After the two tests above, some requests were answered, and refusals had several reasons."""
    if site.seen:
        assert site.seen["answered"] > 5
        assert site.seen["message"] > 30
