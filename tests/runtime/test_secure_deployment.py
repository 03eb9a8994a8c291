"""A deployment as in docs/how-to/deploy.md: TLS, registered keys, two users per hospital.

One SuperLink and three small hospitals on loopback serve all tests of this module. Each hospital is
set up by `dpfact site init` and started like its systemd units. If the tests run as root, each has
two users and no network.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tomli_w

import dpfact_flower
from dpfact_flower.evaluation.run_folder import read_json, read_model
from dpfact_flower.machine.flower import QUIET
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.ledger import Ledger, LedgerRow
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.runtime.serve import federate_config
from dpfact_flower.runtime.superlink import (
    COMPLETED,
    RunFailedError,
    SuperLink,
    local_supernode,
    tool,
)
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.status import run_status
from dpfact_flower.wire.protocol import SiteReply
from tests.apart import apart
from tests.patience import PATIENCE, await_that
from tests.processes import await_none_left, descendant
from tests.runtime.certificates import make_certificates, make_key
from tests.runtime.deployment import (
    APP,
    CONFIG,
    PATIENT,
    assert_arrived,
    assert_same,
    lines_of,
    server_config,
    site_config,
)
from tests.runtime.page import Hospital, centre, page_users, written

NOISY = {**PATIENT, "refine-rounds": 0}
FAULTS = Path(__file__).parents[2] / "docs" / "how-to" / "faults.md"
HOSTILE = Path(__file__).with_name("hostile_app")


@dataclass(frozen=True)
class Federation:
    """The deployment that the tests of this module share."""

    folder: Path
    cohort_folder: Path
    superlink: SuperLink
    authority: Path
    hospitals: list[Hospital]
    nodes: dict[str, str]  # node id of each registered SuperNode, by site
    processes: list[subprocess.Popen[bytes]]
    asked_elsewhere: Callable[[], int] | None

    def flwr(self, *words: str) -> dict[str, object]:
        """Return the answer of a `flwr` command of the centre."""
        done = subprocess.run(
            [tool("flwr"), *words, "centre", "--format", "json"],
            env=self.superlink.environment, capture_output=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    def ended(self) -> bool:
        """Return whether a part of a hospital has ended."""
        return any(process.poll() is not None for process in self.processes)

    def register(self, key: Path, site: str) -> str:
        """Register a site's key at the centre, and return the node id."""
        return str(self.flwr("supernode", "register", f"{key}.pub", "--name", site)["node-id"])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="dpfact-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def federation(cohort, folder, all_surrogates) -> Iterator[Federation]:
    """A SuperLink with TLS that requires registered keys, and a hospital for each site."""
    (folder / "cohort").mkdir()
    cohort.save(folder / "cohort")
    # This compiles machine code, of which each hospital gets a copy.
    federate_config({**NOISY, "data": str(folder / "cohort"), "out": str(folder / "compiled")})
    with ExitStack() as stack:
        asked_elsewhere = stack.enter_context(apart())
        users = page_users()
        superlink = stack.enter_context(centre(folder))
        names = [site.name for site in cohort.sites]
        hospitals = [Hospital(name, folder / name, users, superlink.address) for name in names]
        authority = folder / "tls" / "ca.crt"
        it = Federation(
            folder, folder / "cohort", superlink, authority, hospitals, {}, [], asked_elsewhere
        )
        more = installed(folder, users.site)
        for each in hospitals:
            each.prepare(authority, it.cohort_folder / f"{each.name}.npz")
            it.nodes[each.name] = it.register(each.folder / each.name, each.name)
            for unit in ("dpfact-node", "dpfact-site"):
                it.processes.append(stack.enter_context(each.unit(unit, more)))
        yield it
    assert all(process.poll() is not None for process in [superlink.process, *it.processes])
    await_none_left(folder / "tls" / "flwr")


def installed(folder: Path, user: int) -> dict[str, str]:
    """Copy the tested code and its compiled kernels, and let `user` add more kernels."""
    package = folder / "code" / "dpfact_flower"
    shutil.copytree(dpfact_flower.__path__[0], package)
    for kept in package.rglob("__pycache__"):
        for path in (kept, *kept.iterdir()):
            os.chown(path, user, -1)
    # Without a folder's name, numba chooses a folder next to the code.
    return {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": "", "OPENBLAS_NUM_THREADS": "1"}


def secured(authority: Path, key: Path) -> list[str]:
    """Return options of a SuperNode that trusts an authority and signs with a key."""
    return ["--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]


def await_online(federation: Federation) -> None:
    """Wait until the SuperNodes are admitted and the executors answer."""
    for each in federation.hospitals:
        for unit, sign in (("dpfact-node", "SuperNode ID"), ("dpfact-site", "answering")):
            await_that(lambda e=each, u=unit, s=sign: s in e.log(u) or federation.ended(), unit)
    said = [
        each.log(unit)[-1500:]
        for each in federation.hospitals
        for unit in ("dpfact-node", "dpfact-site")
    ]
    assert not federation.ended(), "\n".join(said)


@pytest.mark.deployment
def test_a_hostile_app_runs_with_flowers_executor_and_not_with_the_hospitals_own(federation):
    """The control hospital has Flower's executor, so there the app reads the patients' file."""
    folder, superlink = federation.folder, federation.superlink
    canaries, out = folder / "canaries", folder / "loot.json"
    canaries.mkdir()
    canaries.chmod(0o777)
    app = shutil.copytree(HOSTILE, folder / "hostile")
    client = app / "hostile" / "client_app.py"
    client.write_text(client.read_text().replace("@CANARIES@", str(canaries)))
    await_online(federation)
    key = make_key(folder, "control")
    node = federation.register(key, "control")
    robbed = federation.hospitals[0].name
    config = {**site_config(federation.cohort_folder, folder, robbed), "site": "control"}
    security = secured(federation.authority, key)
    with local_supernode(superlink, config, folder / "control.log", security=security):
        superlink.run(app, {"out": str(out), "nodes": 1 + len(federation.hospitals)})
    loot = json.loads(out.read_text())
    stolen = (federation.cohort_folder / f"{robbed}.npz").read_bytes()[:64].hex()
    assert loot.pop(node) == stolen
    assert set(loot) == set(federation.nodes.values())
    assert set(loot.values()) == {"dpfact:message (details are in the site's own log)"}
    assert len(list(canaries.iterdir())) == 1  # from the control
    for each in federation.hospitals:
        assert not list(each.folder.rglob("*.fab"))
        assert not list(each.folder.rglob("client_app.py"))
        assert "dpfact_flower" not in each.log("dpfact-node")


@pytest.mark.nightly
@pytest.mark.deployment
def test_an_honest_run_is_answered_and_each_event_is_charged(federation, cohort):
    config = {**NOISY, **server_config(cohort, federation.folder)}
    await_online(federation)
    federation.superlink.run(APP, config)
    summary = read_json(federation.folder / "deployed" / "summary.json")
    assert summary["epsilon"] == pytest.approx(NOISY["epsilon"], rel=1e-6)
    assert summary["claim"].startswith("proven: patient-level")
    assert summary["sites"] == len(federation.hospitals)
    for each, ledger in zip(federation.hospitals, summary["per_site"].values(), strict=True):
        rows = rows_of(each.state())
        events = [event for row in rows for event in row.events]
        assert [event.sigma for event in events] == [row["sigma"] for row in ledger["ledger"]]
        assert len(rows) == len(events)  # the last round sends nothing at no cost


WITHOUT_NOISE = {"allow-privacy": "none", "max-epsilon": 0.0}


@contextmanager
def settings_for(hospitals: list[Hospital], name: str, **changes: object) -> Iterator[None]:
    """Give hospitals separate state folders and other settings, read for every message."""
    before = [each.config.read_text() for each in hospitals]
    for each, text in zip(hospitals, before, strict=True):
        own = tomllib.loads(text)
        own["state-dir"] += f"/{name}"
        each.config.write_text(tomli_w.dumps(own | changes))
    try:
        yield
    finally:
        for each, text in zip(hospitals, before, strict=True):
            each.config.write_text(text)


@pytest.fixture(scope="module")
def signing(federation) -> dict[str, Path]:
    """Make each hospital's key as its own user, and give all public lines to every hospital."""
    keys = {each.name: each.config.with_name("signing.pem") for each in federation.hospitals}
    lines = []
    for each in federation.hospitals:
        made = as_site(each, "keys", "make", str(keys[each.name]), "--site", each.name)
        lines.append(made.splitlines()[0])
    for each in federation.hospitals:
        peers_of(each).write_text("\n".join(lines) + "\n")
    return keys


def peers_of(each: Hospital) -> Path:
    """Return a hospital's file with all sites' public keys."""
    return each.config.with_name("peers")


def as_site(each: Hospital, *words: str) -> str:
    """Return the output of a command run as the hospital's own user."""
    other = {"user": each.users.site, "group": each.users.site, "extra_groups": []}
    done = subprocess.run(
        [tool("dpfact"), *words], capture_output=True, text=True, check=True, cwd="/",
        **(other if each.users.two else {}),
    )  # fmt: skip
    return done.stdout


@pytest.mark.deployment
def test_hospitals_share_one_noise_and_spend_their_budget_once(federation, cohort, signing):
    """The summary and the ledgers have both figures. An unregistered SuperNode is refused."""
    folder, superlink, sites = federation.folder, federation.superlink, len(federation.hospitals)
    await_online(federation)
    stranger = {
        **site_config(federation.cohort_folder, folder, federation.hospitals[0].name),
        "site": "stranger", "state-dir": str(folder / "state-stranger"),
    }  # fmt: skip
    security = secured(federation.authority, make_key(folder, "stranger"))
    log = folder / "stranger.log"
    config = {
        **NOISY, **server_config(cohort, folder), "secure-sums": True, "out": str(folder / "sums"),
    }  # fmt: skip
    with ExitStack() as stack:
        for each in federation.hospitals:
            chosen = {
                "secure-key": str(signing[each.name]), "secure-peers": str(peers_of(each)),
                "max-epsilon-alone": 30.0,
            }  # fmt: skip
            stack.enter_context(settings_for([each], "sums", **chosen))
        with local_supernode(superlink, stranger, log, security=security) as refused:
            superlink.run(APP, config)
            assert refused.wait(PATIENCE) == 1
        spent = [rows_of(each.state("sums")) for each in federation.hospitals]
        with pytest.raises(RunFailedError):  # every hospital has spent its budget
            superlink.run(APP, {**config, "out": str(folder / "second")})
        assert [rows_of(each.state("sums")) for each in federation.hospitals] == spent
        assert any("max-epsilon is" in each.log("dpfact-site") for each in federation.hospitals)
        for each in federation.hospitals:
            assert faults_of(each) == []
        each = federation.hospitals[0]
        public = peers_of(each).read_text()
        swapped = [line.split()[1] for line in public.splitlines()][::-1]
        names = [line.split()[0] for line in public.splitlines()]
        peers_of(each).write_text("\n".join(map(" ".join, zip(names, swapped, strict=True))))
        assert "with the public key of secure-key" in faults_of(each)[0]
        peers_of(each).write_text(public)
        signing[each.name].chmod(0o644)
        assert "others may read it" in faults_of(each)[0]
        signing[each.name].chmod(0o600)
    assert "[code: 2004] Failed to activate SuperNode" in log.read_text()
    assert not (folder / "state-stranger").exists()
    listed = federation.flwr("supernode", "list")["nodes"]
    online = {node["node-id"] for node in listed if node["status"] == "online"}
    assert online >= set(federation.nodes.values())
    summary = read_json(folder / "sums" / "summary.json")
    assert summary["sites"] == sites
    assert summary["epsilon"] == pytest.approx(NOISY["epsilon"], rel=1e-6)
    assert summary["alone"] > summary["epsilon"]
    assert f"at most 1 of {sites} sites collude" in summary["claim"]
    for each in federation.hospitals:
        state = each.state("sums")
        (total,) = json.loads(as_site(each, "ledger", "show", str(state), "--json"))["totals"]
        assert total["epsilon"] == pytest.approx(summary["epsilon"])
        assert total["alone"] == pytest.approx(summary["alone"])
        assert "even if all other sites collude" in as_site(each, "ledger", "show", str(state))
        assert [row.round for row in rows_of(state)] == [1]


def checked(each: Hospital) -> dict[str, list[str]]:
    """Return the check's faults. At least one exists, because `reply-after` is not set."""
    done = subprocess.run([*each.check, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return {found["check"]: found["faults"] for found in json.loads(done.stdout)}


def faults_of(each: Hospital) -> list[str]:
    """Return the faults in a hospital's keys for secure sums."""
    (faults,) = [faults for check, faults in checked(each).items() if "secure sums" in check]
    return faults


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_run_whose_server_dies_is_gone_on_with_to_the_model_of_one_process(federation, cohort):
    """The deployment follows the whole page. Without noise, the models are bit-identical."""
    folder, superlink = federation.folder, federation.superlink
    alone = {**CONFIG, "data": str(federation.cohort_folder), "out": str(folder / "none")}
    expected = read_model(federate_config(alone))[0]
    config = {**CONFIG, **server_config(cohort, folder), "out": str(folder / "plain")}
    link, out = superlink, folder / "plain"
    await_online(federation)
    with settings_for(federation.hospitals, "plain", **WITHOUT_NOISE):
        run = link.submit(APP, config)  # as `dpfact submit` does it
        await_that(lambda: lines_of(out / "history.jsonl"), "a round")
        os.kill(descendant(superlink.process.pid, "flwr-serverapp"), signal.SIGTERM)
        assert link.follow(run)["status"] != COMPLETED
        run = link.submit(APP, {**config, "resume": True})
        assert link.follow(run)["status"] == COMPLETED
    status, rounds = run_status(out), CONFIG["rounds"]
    assert status.is_finished
    assert [(site.name, site.used, site.failed) for site in status.sites] == [
        (site.name, rounds, 0) for site in cohort.sites
    ]
    assert_same(out, expected)
    summary = read_json(out / "summary.json")
    assert summary["sites"] == len(cohort.sites)
    assert summary["auc"] is None  # the server has no patients' data to measure
    for each in federation.hospitals:
        state = each.state("plain")
        assert [row.round for row in rows_of(state)] == list(range(1, rounds + 1))
        (kept,) = state.glob("*/state-*.npz")
        assert kept.name == f"state-{rounds:06d}.npz"
        (history,) = state.glob("*/history.jsonl")
        # Round 1 is the start: co-occurrences, without a model to measure.
        assert len(history.read_text().splitlines()) == rounds - 1


@pytest.mark.nightly
@pytest.mark.deployment
def test_two_runs_at_once_are_charged_apart_and_learn_from_their_own_replies(federation, cohort):
    """Both use the same SuperNodes, with one ledger per hospital.

    Each run's model equals, bit for bit, the model that a server computes from that run's rows in
    the ledgers. A mix-up would go unnoticed otherwise, because releases have equal shapes.
    """
    folder, hospitals = federation.folder, federation.hospitals
    link = federation.superlink
    configs = {
        job: {
            **NOISY, **server_config(cohort, folder), "epsilon": epsilon,
            "seed": seed, "job": job, "out": str(folder / job), "min-sites": 1,
            "round-timeout": 150.0, "refine-rounds": 2,  # several charged rounds can interleave
        }
        for job, epsilon, seed in (("east", 1.0, 5), ("west", 2.0, 6))
    }  # fmt: skip
    await_online(federation)
    with settings_for(hospitals, "two", **{"max-epsilon": 9.0}):
        runs = [link.submit(APP, config) for config in configs.values()]
        assert [link.follow(run)["status"] for run in runs] == [COMPLETED] * 2
    states = [each.state("two") for each in hospitals]
    jobs = [[row.job for row in rows_of(state)] for state in states]
    assert any(each != sorted(each) and each[::-1] != sorted(each) for each in jobs)  # simultaneous
    for job, config in configs.items():
        _, run, solver, privacy = RunConfig.read(config)
        sizes = cohort.sites[0].tensor.feature_shape
        again = Coordinator(sizes, solver=solver, privacy=privacy, run=run)
        heard = [
            set(json.loads(line)["sites"]) for line in lines_of(folder / job / "history.jsonl")
        ]
        for number in range(1, again.rounds + 1):
            planned, replies = again.rule.planned_events(number), []
            # Flower may lose a message, and the round then continues without that site.
            for state in (each for each in states if each.name in heard[number - 1]):
                with whole_ledger(state) as ledger:
                    rows = [r for r in ledger.rows() if (r.job, r.round) == (job, number)]
                    charged = [event for row in rows for event in row.events]
                    assert [unnamed(event) for event in charged] == [*map(unnamed, planned)]
                    release = ledger.release_of(job, number).arrays if planned else ()
                replies.append(SiteReply(state.name, release))
            again.close_round(number, replies, [])
        assert_same(folder / job, again.factors)


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_run_on_arrival_is_answered_and_charged_round_by_round(federation, cohort):
    folder, sites = federation.folder, len(cohort.sites)
    config = {**CONFIG, **server_config(cohort, folder), "aggregation": "async", "rounds": 2}
    await_online(federation)
    with settings_for(federation.hospitals, "arriving", **WITHOUT_NOISE):
        federation.superlink.run(APP, {**config, "out": str(folder / "arriving")})
    assert_arrived(folder / "arriving", rounds=2, sites=sites)
    for each in federation.hospitals:
        assert [row.round for row in rows_of(each.state("arriving"))] == [1, 2]


def unnamed(event: ReleaseEvent) -> ReleaseEvent:
    """Return a charge without its name, which depends on the site's names of modes."""
    return replace(event, name="a release")


@contextmanager
def whole_ledger(state: Path) -> Iterator[Ledger]:
    """Open and verify a copy of a ledger, because only its owner may open the ledger."""
    with tempfile.TemporaryDirectory() as name:
        copy = shutil.copytree(state, Path(name) / "state")
        with Ledger(copy, create=False) as ledger:
            assert ledger.verify() == []
            yield ledger


def rows_of(state: Path) -> tuple[LedgerRow, ...]:
    with whole_ledger(state) as ledger:
        return ledger.rows()


@pytest.mark.deployment
def test_the_pages_check_finds_the_page_in_force(federation):
    each = federation.hospitals[0]
    await_online(federation)
    wrong = {name: found for name, found in checked(each).items() if found and "units" not in name}
    assert "set reply-after" in wrong.pop("each reply leaves at a fixed time")[0]
    if each.users.two:
        assert wrong == {}
        return
    # One user runs both and the SuperLink, which has Flower's executor.
    assert "the key and the data belong to different users" in wrong
    assert wrong.keys() <= {
        "the key and the data belong to different users",
        "the two users run none of Flower's own executors", "the executor has no network",
    }  # fmt: skip


@pytest.mark.deployment
def test_an_executor_with_another_secret_gets_no_message_and_says_why(federation):
    each = federation.hospitals[0]
    await_online(federation)
    secret = federation.folder / "another-secret"
    secret.write_bytes(os.urandom(32))
    command = [tool("dpfact"), "site", "answer", "--config", str(each.config),
               "--secret", str(secret), "--port", str(each.port),
               "--node-user", str(each.users.node)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert "the SuperNode has a different secret" in done.stderr
    assert "the SuperNode has a different secret" in FAULTS.read_text()


@pytest.mark.deployment
def test_a_supernode_that_is_not_let_in_ends_and_says_why(federation):
    """The messages are those in the page's table."""
    folder, superlink = federation.folder, federation.superlink
    key = federation.hospitals[0].key
    other = make_certificates(folder, "other").authority
    cases = {
        "keyless": (["--root-certificates", str(federation.authority)], "[code: 2001]"),
        "wrong-authority": (secured(other, key), "CERTIFICATE_VERIFY_FAILED"),
        "plain": (["--insecure", "--auth-supernode-private-key", str(key)], "Exit Code: 303"),
    }  # fmt: skip
    page = FAULTS.read_text()
    await_online(federation)
    with ExitStack() as stack:
        started = {}
        for name, (security, _) in cases.items():
            own, log = site_config(folder, folder, name), folder / f"{name}.log"
            node = local_supernode(superlink, own, log, security=security)
            started[name] = stack.enter_context(node)
        for name, (_, word) in cases.items():
            assert started[name].wait(PATIENCE) == 1
            text = (folder / f"{name}.log").read_text()
            assert word in text
            assert "SuperNode ID" not in text
            assert word in page
    assert {process.poll() for process in federation.processes} == {None}


@pytest.mark.deployment
def test_nothing_but_loopback_was_asked_for_by_all_of_this(federation):
    """The kernel sees all connections, including the centre's and those of C libraries."""
    if federation.asked_elsewhere is None:
        pytest.skip("only root can leave the network")
    before = federation.asked_elsewhere()
    says = "from flwr.supercore.telemetry import EventType, event; event(EventType.PING).result()"
    talkative = {key: each for key, each in os.environ.items() if key not in QUIET}
    home = {"FLWR_HOME": str(federation.folder / "talkative")}
    subprocess.run([sys.executable, "-c", says], env={**talkative, **home}, check=True)
    assert before == 0
    assert federation.asked_elsewhere() > before  # a request would be noticed


@pytest.mark.process
@pytest.mark.parametrize("user", ["dpfact-node", "dpfact-site", "dpfact-centre"])
def test_systemd_knows_every_line_of_the_pages_units(tmp_path, user):
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    unit = written(f"{user}.service").replace(f"User={user}", "User=root")
    path = tmp_path / f"{user}.service"
    path.write_text(re.sub(r"/opt/dpfact/bin/\S+", shutil.which("true") or "", unit))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    rating = ["systemd-analyze", "security", "--offline=yes", "--threshold=30", path]  # out of 100
    subprocess.run(rating, capture_output=True, check=True)
