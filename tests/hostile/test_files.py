"""Damaged files of every kind that this package reads give our own errors, without patient data.

``python -m pytest tests/hostile --hypothesis-profile long`` tries many more.
"""

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfact_flower.data.readers.tns import read_tns
from dpfact_flower.data.site_data import Cohort, SiteData, Truth, open_site
from dpfact_flower.data.vocabulary import Vocabulary, load_codes
from dpfact_flower.evaluation import run_folder
from dpfact_flower.evaluation.tables import SharedPhenotypes
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import read_history
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.refit import last_request
from dpfact_flower.site.store import RoundMeasures, SiteState, SiteStore
from dpfact_flower.tensor import SquaredError
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from tests.evaluation.summaries import SIMULATED
from tests.hostile.strategies import damaged, in_json, in_lines, in_rows, in_text, members
from tests.hostile.watch import CODES, SIZES, Watch, canary_site, read
from tests.ledgers import charge

SOLVER = SolverSettings(rank=3)


class Kind(NamedTuple):
    """A file, the format-specific ways to damage it, and all its readers."""

    path: Path
    how: Callable[[bytes], st.SearchStrategy[bytes]]
    readers: tuple[Callable[[], object], ...]
    names: Path
    """The text that an error must contain. For files that do not belong together, it is the
    folder."""


def coordinator(folder: Path, *, resume: bool = True) -> Coordinator:
    return Coordinator(
        SIZES, solver=SOLVER, privacy=PrivacySettings(privacy="none"), run_dir=folder,
        run=RunSettings(start="random", job="job", rounds=3), resume=resume, durable=False,
    )  # fmt: skip


def write_run(folder: Path) -> None:
    """Write the folder of a server, which knows only public codes."""
    public = [Vocabulary(mode, tuple(f"{mode}-{n}" for n in range(k))) for mode, k in CODES.items()]
    server = coordinator(folder, resume=False)
    reply = SiteReply("north", server.factors)
    server.close_round(1, [reply], [], bytes_down=1, bytes_up=1, seconds=SIMULATED.exchange.seconds)
    run_folder.write_summary(folder, SIMULATED)
    run_folder.write_model(folder, server.factors, public)
    run_folder.write_config(folder, {"rank": 3, "job": "job"}, {"numpy": "2"})
    run_folder.write_json(folder / run_folder.PHENOTYPES, SharedPhenotypes(None, None))


def write_state(root: Path, site: SiteData) -> SiteStore:
    store = SiteStore(root / site.name, "job", site.fingerprint)
    rng = np.random.default_rng(0)
    factors = tuple(rng.random((n, 3)).astype(np.float32) for n in (12, *SIZES))
    store.save(SiteState(2, factors, 0.1))
    error = SquaredError(1.0, 0.5, 3.0, 240, 40)
    for number in (1, 2, 3):
        store.note(RoundMeasures(number, error, 0.01))
    request = RoundRequest(
        job="job", round=2, rounds=2, seed=0, solver=SOLVER, privacy=PrivacySettings(),
        vocabulary="", anchors=factors[1:], rule="patient",
        selection=tuple(np.arange(n, dtype=np.int32) for n in SIZES),
    )  # fmt: skip
    store.keep_ending(*request.to_wire())
    with Ledger(root / site.name, create=True) as ledger:
        for number in (1, 2, 3):
            charge(ledger, "job", number, "patient")
    return store


def in_ledger(use: Callable[[Ledger], object]) -> Callable[[Path], object]:
    def reader(path: Path) -> object:
        with Ledger(path.parent, create=False) as ledger:
            return use(ledger)

    return reader


LEDGER_USES = (
    lambda ledger: (ledger.head(), ledger.verify()),
    lambda ledger: (ledger.events(), ledger.rows()),
    lambda ledger: ledger.release_of("job", 2),
    lambda ledger: (ledger.events("job"), charge(ledger, "job", 4, "patient")),
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> dict[str, Kind]:
    """One valid file of every kind, with its readers."""
    folder, site = tmp_path_factory.mktemp("files"), canary_site()
    store = write_state(folder / "state", site)
    (run := folder / "run").mkdir()
    write_run(run)
    factors = tuple(np.eye(n, 2) for n in SIZES)
    Cohort("small", (site,), Truth(factors, np.ones((1, 2), bool))).save(folder / "cohort")
    (lists := folder / "lists").mkdir()
    tns = b"# shape: 3 2\n1 1 1\n2 2 2\n3 2 3\n"
    (lists / "t.tns").write_bytes(tns)
    (lists / "t.tns.gz").write_bytes(gzip.compress(tns))
    site.vocabularies[0].save(lists / "words.json")
    (lists / "codes.json").write_text(json.dumps(["a", "b", "c"]))
    (lists / "codes.csv").write_text('code,description\n"a","an a"\nb,\n')
    (lists / "codes.txt").write_text("# codes\na\nb\n")
    whole, own = folder / "cohort", folder / "state" / "north"
    (state,) = store.folder.glob("state*")
    found: dict[str, tuple] = {
        "site": (whole / "north.npz", members, SiteData.load, lambda path: open_site(path).read()),
        "cohort": (whole / "cohort.json", in_json, lambda path: Cohort.load(whole)),
        "truth": (whole / "truth.npz", members, lambda path: Cohort.load(whole)),
        "vocabulary": (lists / "words.json", in_json, Vocabulary.load),
        "codes.json": (lists / "codes.json", in_json, lambda path: load_codes(path, "a")),
        "codes.csv": (lists / "codes.csv", in_text, lambda path: load_codes(path, "a")),
        "codes.txt": (lists / "codes.txt", in_text, lambda path: load_codes(path, "a")),
        "tns": (lists / "t.tns", in_text, read_tns),
        "tns.gz": (lists / "t.tns.gz", in_text, read_tns),
        "state": (state, members, lambda path: store.load(2), lambda path: store.load()),
        "ending": (store.folder / "ending.npz", members, lambda path: last_request(store)),
        "site history": (store.folder / "history.jsonl", in_lines, lambda path: store.history()),
        "ledger": (own / LEDGER, in_rows, *map(in_ledger, LEDGER_USES)),
        "checkpoint": (run / "checkpoint.npz", members, lambda path: coordinator(run)),
        "history": (run / "history.jsonl", in_lines, lambda path: read_history(run)),
        "summary": (run / "summary.json", in_json, lambda path: run_folder.read_summary(run)),
        "phenotypes": (run / "phenotypes.json", in_json,
                       lambda path: run_folder.read_phenotypes(run)),
        "model": (run / "global_model.npz", members, lambda path: run_folder.read_model(run)),
        "config": (run / "config.toml", in_text, lambda path: run_folder.read_config(run)),
    }  # fmt: skip
    return {
        name: Kind(
            path, how, tuple(lambda path=path, each=each: each(path) for each in readers),
            path.parent if name in ("cohort", "truth") else path,
        )
        for name, (path, how, *readers) in found.items()
    }  # fmt: skip


NAMES = (
    "site", "cohort", "truth", "vocabulary", "codes.json", "codes.csv", "codes.txt", "tns",
    "tns.gz", "state", "ending", "site history", "ledger", "checkpoint", "history",
    "summary", "phenotypes", "model", "config",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(suppress_health_check=[*HealthCheck], max_examples=settings().max_examples // 5)
def test_a_damaged_file_is_read_or_an_error_of_ours_that_names_it(kinds, name, data):
    assert {*kinds} == {*NAMES}
    kind = kinds[name]
    good = kind.path.read_bytes()
    beside = {path: path.read_bytes() for path in kind.path.parent.glob(f"{kind.path.name}-*")}
    kind.readers[0]()  # the undamaged file can be read
    content = data.draw(damaged(good) | kind.how(good))
    try:
        with Watch():
            for reader in kind.readers:
                kind.path.write_bytes(content)
                read(reader, names=str(kind.names))
    finally:
        for path in kind.path.parent.glob(f"{kind.path.name}-*"):
            path.unlink()
        for path, whole in ({kind.path: good} | beside).items():
            path.write_bytes(whole)


@pytest.mark.parametrize("line", ["CANARY-3", "x" * 1100, "one\ntwo", "north: unexpected KeyError"])
def test_the_watch_notices_a_line_of_the_log(line):
    with pytest.raises(AssertionError), Watch():
        logging.getLogger("dpfact_flower.site").info("a patient: %s", line)
