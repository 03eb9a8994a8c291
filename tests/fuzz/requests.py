"""Requests that no honest server sends, through the site's door and through the ClientApp."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from dpfact_flower import errors
from dpfact_flower.client import DPFactClient, RoundRefusedError
from dpfact_flower.client_app import app as client_app
from dpfact_flower.data.site_data import open_site
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import SiteReply
from tests.fuzz import damage
from tests.fuzz.watch import CODES, Watch, canary_site

Wire = tuple[list[Any], dict[str, Any]]
SIZES = tuple(CODES.values())
PRIVACIES = (
    PrivacySettings(start_share=0.7, refine_rounds=1, bound=0.1),
    PrivacySettings(start_share=0.7, refine_rounds=1, bound=0.1, codes="3x4"),
    PrivacySettings(privacy="none"),
)
LEAVES = re.compile(r"dpfact:([a-z-]+) \(details are in the site's own log\)")
CODES_KNOWN = {
    kind.code for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DPFactError)
} - {"internal"}  # fmt: skip
KINDS = ("train",) * 6 + ("evaluate",)
MOST_RUNS = 12
"""Honest runs that the site's cap leaves room for; a ledger that only grows would slow all down."""


def ask_anything(folder: Path, number: int, seed: int, watch: Watch) -> None:
    """Ask a site so many times, and look at whatever it says."""
    site = canary_site()
    site.save(folder / "north.npz")
    InProcessGrid(client_app, [{}], {})  # Flower's messages need to know whose task they are
    clients = {mode: _settings(folder, mode) for mode in ("patient", "none")}
    good = {mode: list(_honest(folder, mode, site.vocabularies)) for mode in clients}
    for trial in range(number):
        rng = random.Random(f"{seed}/{trial}")
        mode = rng.choice(("patient", "patient", "patient", "none"))
        wire = _asked(good, mode, rng)
        watch.what = f"request {trial}"
        if rng.random() < 0.2 and (content := _content(wire, rng)) is not None:
            _through_the_app(content, clients[mode], watch, rng.choice(KINDS))
        else:
            _through_the_door(wire, clients[mode], folder, watch)
        for note in folder.glob("state-*/*/LEDGER-LACKS-ROUNDS.txt"):
            note.unlink()  # somebody has looked


def _settings(folder: Path, mode: str) -> dict[str, Any]:
    capped = {"max-epsilon": 4.0 * MOST_RUNS**0.5} if mode == "patient" else {}
    return {"data-path": str(folder / "north.npz"), "state-dir": str(folder / f"state-{mode}"),
            "allow-privacy": mode, **capped}  # fmt: skip


def _honest(folder: Path, mode: str, vocabularies: Any) -> Iterator[Wire]:
    """Requests of whole runs, which a site of its own has answered."""
    settings = SiteSettings.from_config(
        _settings(folder, mode) | {"state-dir": str(folder / f"honest-{mode}")}
    )
    for number, privacy in enumerate(p for p in PRIVACIES if p.privacy == mode):
        client = DPFactClient(open_site(folder / "north.npz"), settings)
        server = Coordinator(
            SIZES, solver=SolverSettings(rank=3), privacy=privacy,
            run=RunSettings(job=f"run-{number}", rounds=3), vocabulary=joint_digest(vocabularies),
        )  # fmt: skip
        for turn in range(1, server.rounds + 1):
            wire = server.request(turn).to_wire()
            yield wire
            arrays, _, config = client.fit(*wire)
            reply = SiteReply.from_wire(arrays, config, server.reply_shapes(turn))
            server.close_round(turn, [reply], [], bytes_down=0, bytes_up=0, seconds=0.0)


def _asked(good: Mapping[str, list[Wire]], mode: str, rng: random.Random) -> Wire:
    """An honest request, most often with something changed."""
    other = rng.choice(("patient", "none")) if rng.random() < 0.1 else mode
    arrays, config = rng.choice(good[other])
    arrays, config = list(arrays), dict(config)
    if rng.random() < 0.5:
        config["job"] = f"run-{rng.randrange(3 * MOST_RUNS)}"
    if rng.random() < 0.9:
        config.pop("answered", None)  # another site has, with the settings of this one
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        if rng.random() < 0.6:
            _change_config(config, rng)
        else:
            _change_arrays(arrays, rng)
    if rng.random() < 0.03:
        config = {f"key-{number}": _odd(rng) for number in range(rng.randrange(20))}
    return arrays, config


def _change_config(config: dict[str, Any], rng: random.Random) -> None:
    key = rng.choice(list(config) or ["job"])
    kind = rng.random()
    if kind < 0.1:
        config.pop(key, None)
    elif kind < 0.2:
        config[rng.choice(("privacy", "rule", "noise-seed", "codes", "x" * 5000, "__class__"))] = (
            _odd(rng)
        )
    elif kind < 0.6 and type(config.get(key)) in (int, float):
        config[key] = type(config[key])(
            rng.choice((0, -1, 1, 2, 3, 7, 50, 51, 200, 201, 1e6, 2**31, 1e15, config[key] + 1))
        )
    else:
        config[key] = _odd(rng)


def _odd(rng: random.Random) -> Any:
    return rng.choice((
        None, True, 0, -1, 2**63, 10**5000, 0.0, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
        "", "x", "y" * 100_000, "../../up", "ledger.sqlite", "ledger.sqlite-journal", ".lock",
        "CON", "a/b", "a\nb", "\x00", "\u202e", "\ud800", "1x1", "99999999x1", "patient", "none",
        "paper", "elastic", "exact", "psgd", b"\xff" * 5000, [1] * 5000, ["x"], {}, (1,), set(),
        np.float32(1), np.int64(3), np.array([1, 2]), np.array(3), object(), int, 1 + 2j,
    ))  # fmt: skip


def _change_arrays(arrays: list[Any], rng: random.Random) -> None:
    place = rng.randrange(len(arrays) + 1)
    if place == len(arrays) or rng.random() < 0.15:
        arrays.insert(place, _odd_array(np.zeros((4, 3), np.float32), rng))
    elif rng.random() < 0.15:
        del arrays[place]
    elif rng.random() < 0.1:
        rng.shuffle(arrays)
    else:
        arrays[place] = _odd_array(arrays[place], rng)


def _odd_array(array: Any, rng: random.Random) -> Any:
    if not isinstance(array, np.ndarray):
        return _odd(rng)
    kind = rng.random()
    if kind < 0.3:
        values = array.copy()
        if values.size and values.dtype.kind in "fi":
            odd = (0, -1, 1, 2**31 - 1, 5) if values.dtype.kind == "i" else (
                0.0, -1.0, np.nan, np.inf, 1e6, 1.1e6, 1e30, 1e-45, -1e6)  # fmt: skip
            with np.errstate(all="ignore"):
                values.flat[rng.randrange(values.size)] = rng.choice(odd)
        return values
    makes = (
        lambda: array.astype(rng.choice(("f8", "f2", "i4", "i8", "u1", ">f4", ">i4", "?", "U5"))),
        lambda: array.astype("O"), lambda: array.ravel()[:1].reshape(()), array.ravel,
        lambda: array[None], lambda: array.T, lambda: array[::-1], lambda: array[:-1],
        lambda: np.concatenate([array, array]), lambda: array[:0], lambda: array * 1e6,
        lambda: -array, lambda: np.zeros(array.shape, np.float32), lambda: _odd(rng),
        lambda: _spread(array, rng), lambda: _spread(array, rng),
        lambda: np.zeros((200, 300), np.float32), lambda: np.zeros(100_000, np.uint8),
        lambda: np.zeros((1,) * 30, np.float32), lambda: np.arange(5, dtype=np.int32),
        lambda: np.zeros(3, [("field" * 20, "f4")]), lambda: list(array), lambda: array[..., None],
        lambda: np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (10**6, 3), (0, 0)),
    )  # fmt: skip
    try:
        with np.errstate(all="ignore"):
            return rng.choice(makes)()
    except (TypeError, ValueError, IndexError):
        return None


def _spread(array: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    """Values of either sign, and of all sizes that a site may meet."""
    own = np.random.default_rng(rng.randrange(2**32))
    low, high = sorted((rng.uniform(-45, 6), rng.uniform(-45, 6)))
    signs = own.choice((-1.0, 0.0, 1.0), array.shape)
    return (signs * 10.0 ** own.uniform(low, high, array.shape)).astype(np.float32)


def _through_the_door(wire: Wire, config: Mapping[str, Any], folder: Path, watch: Watch) -> None:
    client = DPFactClient(open_site(folder / "north.npz"), SiteSettings.from_config(config))
    try:
        arrays, examples, reply = client.fit(*wire)
    except RoundRefusedError as refusal:
        _refused(str(refusal), watch)
        return
    except Exception as error:
        watch.problem(f"{type(error).__name__} left the client: {str(error)[:200]}")
        return
    watch.seen["request: answered"] += 1
    watch.sent(*arrays, reply)
    if examples != 1 or set(reply) != {"site"}:
        watch.problem("a reply that says more than the site's name")


def _through_the_app(
    content: RecordDict, config: Mapping[str, Any], watch: Watch, kind: str
) -> None:
    context = Context(1, 1, dict(config), RecordDict(), {})
    message = Message(content, 1, kind)
    try:
        reply = client_app(message, context)
    except Exception as error:
        watch.problem(f"{type(error).__name__} left the app: {str(error)[:200]}")
        return
    if reply.has_error():
        _refused(reply.error.reason, watch)
        return
    watch.seen["message: answered"] += 1
    found = records.read_reply(reply)
    watch.sent(*found.arrays, dict(found.config))


def _refused(text: str, watch: Watch) -> None:
    found = LEAVES.fullmatch(text)
    if not found or found[1] not in CODES_KNOWN:
        watch.problem(f"a refusal that says {text[:200]!r}")
    watch.seen[f"request: {found[1] if found else '?'}"] += 1
    watch.text(text)


def _content(wire: Wire, rng: random.Random) -> RecordDict | None:
    """A message of the request, its bytes damaged now and then; None where Flower makes none."""
    arrays, config = wire
    try:
        asked = records.ask([np.asarray(array) for array in arrays], config)
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
    record = asked["fitins.parameters"]
    for name in list(record) if rng.random() < 0.5 else ():
        record[name] = _odd_record(record[name], rng)
    if rng.random() < 0.05:
        return RecordDict({rng.choice(("x", "fitins.config")): ConfigRecord({"a": 1})})
    if rng.random() < 0.05:
        return RecordDict({"fitins.parameters": record, "fitins.config": ArrayRecord()})
    return asked


def _odd_record(array: Array, rng: random.Random) -> Array:
    data = rng.choice((damage.flip, damage.cut, damage.bad_head))(array.data, rng)
    shape = rng.choice((array.shape, array.shape, (10**12, 10**6), (-1,), (2**40,), (True, 3)))
    dtype = rng.choice((array.dtype, array.dtype, "float32", "object", "x" * 3000, "<f4"))
    stype = rng.choice(("numpy.ndarray",) * 5 + ("pickle", "x" * 3000))
    return Array(dtype, shape, stype, rng.choice((array.data, data)))
