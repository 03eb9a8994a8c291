"""Files of every kind that this package reads, and what reads them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpfact_flower.data.site_data import Cohort, SiteData, Truth, open_site
from dpfact_flower.data.vocabulary import Vocabulary, load_codes
from dpfact_flower.evaluation.run_folder import (
    read_config,
    read_model,
    read_phenotypes,
    read_summary,
    write_config,
    write_model,
    write_phenotypes,
    write_summary,
)
from dpfact_flower.evaluation.tables import GlobalCodes
from dpfact_flower.privacy import PATIENT_CLAIM, Release, ReleaseEvent
from dpfact_flower.privacy.ledger import LEDGER, Ledger, ReleaseKey
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import read_history
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.refit import last_request
from dpfact_flower.site.store import RoundMeasures, SiteState, SiteStore
from dpfact_flower.tensor.error import SquaredError
from dpfact_flower.tensor.frostt import read_tns
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from tests.evaluation.summaries import SIMULATED
from tests.fuzz import damage
from tests.fuzz.ledgers import in_rows
from tests.fuzz.watch import CODES, Watch, canary_site

SOLVER = SolverSettings(rank=3)
OPEN = PrivacySettings(privacy="none")
SIZES = tuple(CODES.values())


_WITH_OTHERS = ("cohort", "truth")
"""Kinds whose errors may name the folder alone: files that do not belong together."""


class Kind(NamedTuple):
    """A file, how those damage it who know its format, and all that reads it."""

    name: str
    path: Path
    damages: tuple[damage.Damage, ...]
    readers: tuple[Callable[[], object], ...]


def _coordinator(folder: Path, *, resume: bool = True) -> Coordinator:
    return Coordinator(
        SIZES, solver=SOLVER, privacy=OPEN, run=RunSettings(start="random", job="job", rounds=3),
        run_dir=folder, resume=resume, durable=False,
    )  # fmt: skip


def _run_folder(folder: Path) -> None:
    """A server's, which knows public codes and no patient."""
    public = [Vocabulary(mode, tuple(f"{mode}-{n}" for n in range(k))) for mode, k in CODES.items()]
    server = _coordinator(folder, resume=False)
    reply = SiteReply("north", server.factors)
    server.close_round(1, [reply], [], bytes_down=1, bytes_up=1, seconds=0.1)
    write_summary(folder, SIMULATED)
    write_model(folder, server.factors, public)
    write_config(folder, {"rank": 3, "job": "job"}, {"numpy": "2"})
    write_phenotypes(folder, GlobalCodes({"procedures": (), "diagnoses": ()}))


def _site_folder(root: Path, site: SiteData) -> SiteStore:
    store = SiteStore(root, site.name, "job", site.fingerprint, simulation=False)
    rng = np.random.default_rng(0)
    factors = tuple(rng.random((n, 3)).astype(np.float32) for n in (12, *SIZES))
    store.save(SiteState(2, factors, 0.1))
    error = SquaredError(1.0, 0.5, 3.0, 240, 40)
    for number in (1, 2, 3):
        store.note(RoundMeasures(number, (2.0, 1.0), error, (1.0, 2.0, 0.5), 0.1, 0, 0.01))
    request = RoundRequest(
        job="job", round=2, rounds=2, seed=0, solver=SOLVER, privacy=PrivacySettings(),
        vocabulary="", anchors=factors[1:],
        selection=tuple(np.arange(n, dtype=np.int32) for n in SIZES),
    )  # fmt: skip
    store.keep_ending(*request.to_wire())
    store.note_selection(request.selection_digest)
    with Ledger(root / site.name) as ledger:
        for number in (1, 2, 3):
            ledger.charge(*_charge(number))
    return store


def _charge(number: int) -> tuple[ReleaseKey, str, Release]:
    event = ReleaseEvent(f"round {number}", 1.0, 2.0, 3, "patient", "add-remove", PATIENT_CLAIM)
    values = np.full(3, number, np.float32)
    return ReleaseKey("f" * 64, "job", number, "asked"), "terms", Release((values,), (event,))


def _ledger_readers(folder: Path) -> tuple[Callable[[], object], ...]:
    def use(action: Callable[[Ledger], object]) -> Callable[[], object]:
        def read() -> object:
            with Ledger(folder, create=False) as ledger:
                return action(ledger)

        return read

    return (
        use(lambda ledger: (ledger.head(), ledger.verify())),
        use(lambda ledger: ledger.events()),
        use(lambda ledger: (ledger.rows(), ledger.last("job"), ledger.last("nothing"))),
        use(lambda ledger: [ledger.answer(_charge(number)[0]) for number in (1, 3)]),
        use(lambda ledger: ledger.release_of("job", 2)),
        use(lambda ledger: (ledger.events("job"), ledger.charge(*_charge(4)))),
        use(lambda ledger: ledger.has(*_charge(3))),
    )


def make_kinds(folder: Path) -> list[Kind]:
    """One good file of every kind, with what reads it."""
    site = canary_site()
    store = _site_folder(folder / "state", site)
    own = folder / "state" / "north"
    (folder / "run").mkdir()
    _run_folder(folder / "run")
    factors = tuple(np.eye(n, 2) for n in SIZES)
    Cohort("small", (site,), Truth(factors, np.ones((1, 2), bool))).save(folder / "cohort")
    data, lists = folder / "cohort" / "north.npz", folder / "lists"
    lists.mkdir()
    (lists / "tensor.tns").write_text("# shape: 3 2\n1 1 1\n2 2 2\n3 2 3\n")
    (lists / "tensor.tns.gz").write_bytes(gzip.compress((lists / "tensor.tns").read_bytes()))
    site.vocabularies[0].save(lists / "words.json")
    (lists / "codes.json").write_text(json.dumps(["a", "b", "c"]))
    (lists / "codes.csv").write_text('code,description\n"a","an a"\nb,\n')
    (lists / "codes.txt").write_text("# codes\na\nb\n")
    run = folder / "run"
    npz, text = (damage.members,), (damage.in_text,)
    found = (
        Kind("site", data, npz, (lambda: SiteData.load(data), lambda: open_site(data).read())),
        *(
            Kind("tns", path, text, (lambda path=path: read_tns(path),))
            for path in (lists / "tensor.tns", lists / "tensor.tns.gz")
        ),
        Kind("vocabulary", lists / "words.json", (damage.in_json,),
             (lambda: Vocabulary.load(lists / "words.json"),)),
        *(
            Kind("codes", lists / name, (how,), (lambda name=name: load_codes(lists / name, "a"),))
            for name, how in (("codes.json", damage.in_json), ("codes.csv", damage.in_text),
                              ("codes.txt", damage.in_text))
        ),
        Kind("cohort", folder / "cohort" / "cohort.json", (damage.in_json,),
             (lambda: Cohort.load(folder / "cohort"),)),
        Kind("truth", folder / "cohort" / "truth.npz", (),
             (lambda: Cohort.load(folder / "cohort"),)),
        Kind("state", store.folder / "state-000002.npy", (damage.within_check,),
             (lambda: store.load(2), store.load)),
        Kind("ending", store.folder / "ending.npz", npz, (lambda: last_request(store),)),
        Kind("selection", store.folder / "selection.sha256", text,
             (lambda: store.same_selection("0" * 64),)),
        Kind("site history", store.folder / "history.jsonl", (damage.in_lines,), (store.history,)),
        Kind("ledger", own / LEDGER, (in_rows, in_rows), _ledger_readers(own)),
        Kind("checkpoint", run / "checkpoint.npz", npz, (lambda: _coordinator(run),)),
        Kind("history", run / "history.jsonl", (damage.in_lines,), (lambda: read_history(run),)),
        Kind("summary", run / "summary.json", (damage.in_json,), (lambda: read_summary(run),)),
        Kind("phenotypes", run / "phenotypes.json", (damage.in_json,),
             (lambda: read_phenotypes(run),)),
        Kind("model", run / "global_model.npz", npz, (lambda: read_model(run),)),
        Kind("config", run / "config.toml", text, (lambda: read_config(run),)),
    )  # fmt: skip
    return list(found)


def damage_files(folder: Path, number: int, seed: int, watch: Watch) -> None:
    """Damage so many files, one after the other, and read each with all that reads its kind."""
    kinds = make_kinds(folder)
    good = {kind.path: kind.path.read_bytes() for kind in kinds}
    for kind in kinds:  # whole, they are read
        for reader in kind.readers[:1]:
            reader()
    for trial, kind in zip(range(number), _endlessly(kinds), strict=False):
        rng = random.Random(f"{seed}/{trial}")
        others = rng.choice(kinds).path
        how = rng.choice((damage.flip, damage.cut, *kind.damages, *kind.damages))
        content = good[others] if rng.random() < 0.02 else how(good[kind.path], rng)
        for reader in kind.readers:
            kind.path.write_bytes(content)
            place = kind.path.parent if kind.name in _WITH_OTHERS else kind.path
            watch.read(f"{kind.name}, trial {trial} ({how.__name__})", reader, names=str(place))
        for side in kind.path.parent.glob(f"{kind.path.name}-journal"):
            side.unlink()
        kind.path.write_bytes(good[kind.path])


def _endlessly(kinds: list[Kind]) -> Iterator[Kind]:
    while True:
        yield from kinds
