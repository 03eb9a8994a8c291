"""A deployment with TLS and registered SuperNodes, as docs/how-to/deploy.md has it.

One SuperLink and three SuperNodes on loopback serve all tests of this module. The page itself is
tested too: its certificates are made and compared, its options are those used here.
"""

import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpfact_flower.evaluation.run_folder import read_json, read_model
from dpfact_flower.runtime.federate import federate
from dpfact_flower.runtime.superlink import Certificates, SuperLink, local_superlink, tool
from tests.patience import PATIENCE, await_that
from tests.processes import await_none_left, processes_of
from tests.runtime.certificates import make_certificates, make_key
from tests.runtime.deployment import (
    APP,
    assert_same,
    server_config,
    site_config,
    supernode,
)

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
CONFIG = {"rounds": 1, "rank": 4, "seed": 5, "privacy": "none", "tau": 2}


@dataclass(frozen=True)
class Federation:
    """What the tests of this module share."""

    folder: Path
    cohort_folder: Path
    superlink: SuperLink
    certificates: Certificates
    nodes: dict[str, str]  # node id of each registered SuperNode, by site
    processes: list[subprocess.Popen[bytes]]

    def flwr(self, *words: str) -> dict[str, object]:
        """Answer of a `flwr` command of the centre."""
        done = subprocess.run(
            [tool("flwr"), *words, "dpfact", "--format", "json"],
            env=self.superlink.environment, capture_output=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def federation(cohort, tmp_path_factory) -> Iterator[Federation]:
    """A SuperLink with TLS that asks for registered keys, and the SuperNodes of three hospitals."""
    folder = tmp_path_factory.mktemp("secure")
    (folder / "cohort").mkdir()
    cohort.save(folder / "cohort")
    certificates = make_certificates(folder, "centre")
    home = folder / "flwr"
    with ExitStack() as stack:
        superlink = stack.enter_context(
            local_superlink(
                home, simulation=False, certificates=certificates,
                options=["--enable-supernode-auth"],
            )
        )  # fmt: skip
        it = Federation(folder, folder / "cohort", superlink, certificates, {}, [])
        for site in cohort.sites:
            key = make_key(folder, site.name)
            answer = it.flwr("supernode", "register", f"{key}.pub", "--name", site.name)
            it.nodes[site.name] = str(answer["node-id"])
            config = site_config(it.cohort_folder, folder, site.name)
            security = secured(certificates, key)
            it.processes.append(stack.enter_context(supernode(superlink, folder, config, security)))
        assert len(processes_of(home)) >= 4 or not Path("/proc").is_dir()
        yield it
    assert all(process.poll() is not None for process in [superlink.process, *it.processes])
    await_none_left(home)


def secured(certificates: Certificates, key: Path) -> list[str]:
    """Options of a SuperNode that trusts an authority and signs with a key."""
    return [
        "--root-certificates", str(certificates.authority),
        "--auth-supernode-private-key", str(key),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.deployment
def test_registered_sites_give_the_numbers_of_one_process_and_a_stranger_no_work(
    federation, cohort
):
    folder, superlink = federation.folder, federation.superlink
    stranger = {
        **site_config(federation.cohort_folder, folder, "site-1"),
        "site": "stranger", "state-dir": str(folder / "state-stranger"),
    }  # fmt: skip
    security = secured(federation.certificates, make_key(folder, "stranger"))
    with supernode(superlink, folder, stranger, security) as refused:
        superlink.run(APP, {**CONFIG, **server_config(cohort, folder)})
        assert refused.wait(PATIENCE) == 1
    assert "[code: 2004] Failed to activate SuperNode" in (folder / "stranger.log").read_text()
    assert not (folder / "state-stranger").exists()

    config = {**CONFIG, "data": str(federation.cohort_folder), "out": str(folder / "inprocess")}
    assert_same(folder / "deployed", read_model(federate(config))[0])
    assert read_json(folder / "deployed" / "summary.json")["sites"] == 3
    listed = federation.flwr("supernode", "list")["nodes"]
    online = {node["node-id"] for node in listed if node["status"] == "online"}
    assert online == set(federation.nodes.values())
    assert len(listed) == 3
    assert (superlink.home / "superlink.log").read_text().count("Created run") == 1


@pytest.mark.slow
@pytest.mark.deployment
def test_a_supernode_that_is_not_let_in_ends_and_says_why(federation):
    """The words are those of the page's table."""
    folder, superlink = federation.folder, federation.superlink
    key = folder / "site-1"
    other = make_certificates(folder, "other")
    cases = {
        "keyless": (
            ["--root-certificates", str(federation.certificates.authority)], "[code: 2001]",
        ),
        "wrong-authority": (secured(other, key), "CERTIFICATE_VERIFY_FAILED"),
        "plain": (["--insecure", "--auth-supernode-private-key", str(key)], "Exit Code: 303"),
    }  # fmt: skip
    page = PAGE.read_text()
    await_online(federation)
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(
                supernode(superlink, folder, site_config(folder, folder, name), security)
            )
            for name, (security, _) in cases.items()
        }
        # Without a key there is nothing to refuse: it asks in plain text, again and again.
        config = site_config(folder, folder, "keyless-plain")
        waits = stack.enter_context(supernode(superlink, folder, config))
        for name, (_, word) in cases.items():
            assert started[name].wait(PATIENCE) == 1
            text = (folder / f"{name}.log").read_text()
            assert word in text
            assert "SuperNode ID" not in text
            assert word in page
        word = "Connection attempt failed, retrying"
        await_that(lambda: word in (folder / "keyless-plain.log").read_text(), word)
        assert waits.poll() is None
    assert word in page
    assert "SuperNode ID" not in (folder / "keyless-plain.log").read_text()
    assert [process.poll() for process in federation.processes] == [None] * 3


def await_online(federation: Federation) -> None:
    """Wait until the three SuperNodes are let in."""
    for site in federation.nodes:
        log = federation.folder / f"{site}.log"
        await_that(lambda log=log: "SuperNode ID" in log.read_text(), f"the SuperNode of {site}")


@pytest.mark.slow
@pytest.mark.deployment
def test_flwr_run_without_the_authority_starts_nothing(federation):
    folder, superlink = federation.folder, federation.superlink
    connections = {
        "nobody": {},
        "plain": {"insecure": True},
    }
    log = superlink.home / "superlink.log"
    runs = log.read_text().count("Created run")
    started = []
    for name, trust in connections.items():
        home = folder / f"home-{name}"
        home.mkdir()
        connection = {"address": superlink.address, **trust}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"dpfact": connection}}))
        environment = {**superlink.environment, "FLWR_HOME": str(home)}
        started.append(
            subprocess.Popen(
                superlink.run_command(APP, CONFIG), env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    said = "Connection to the SuperLink is unavailable"
    assert said in PAGE.read_text()
    for process in started:
        assert said in process.communicate(timeout=PATIENCE)[0].decode()
        assert process.returncode == 1
    assert log.read_text().count("Created run") == runs


@pytest.mark.slow
@pytest.mark.deployment
def test_the_page_starts_both_sides_with_the_options_that_are_tested(federation):
    superlink = options_of(federation.superlink.process.args)
    assert page_options("flower-superlink") <= superlink
    # Where to listen, and runs in processes of their own: the defaults, on other ports.
    assert superlink - page_options("flower-superlink") == {"--control-api-address", "--isolation"}
    for process in federation.processes:
        assert options_of(process.args) == page_options("flower-supernode")


def options_of(words) -> set[str]:
    return {word for word in words if word.startswith("--")}


def page_blocks() -> list[str]:
    """Commands of the page: the indented blocks."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE.read_text(), re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]


def page_options(command: str) -> set[str]:
    """Options that the page gives a command, in the one block that starts with it."""
    (block,) = [text for text in page_blocks() if text.lstrip().startswith(command)]
    return options_of(block.split())


@pytest.fixture(scope="module")
def page_files(tmp_path_factory) -> Path:
    """What the commands of the page's third step make."""
    if not (shutil.which("openssl") and shutil.which("ssh-keygen") and shutil.which("sh")):
        pytest.skip("needs openssl and ssh-keygen")
    folder = tmp_path_factory.mktemp("page")
    made = [block for block in page_blocks() if "openssl req" in block or "ssh-keygen" in block]
    assert made
    subprocess.run(["sh", "-ec", "\n".join(made)], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("name", ["centre.example", "127.0.0.1"])
def test_the_pages_certificate_holds_for_the_hospitals_and_for_the_superlinks_helpers(
    page_files, name
):
    handshake(page_files, name)


@pytest.mark.parametrize("name", ["other.example", "127.0.0.2", "ca"])
def test_the_pages_certificate_holds_for_nobody_else(page_files, name):
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(page_files, name)


def test_the_pages_key_is_one_that_a_supernode_takes(page_files):
    key = serialization.load_ssh_private_key((page_files / "north").read_bytes(), None)
    public = serialization.load_ssh_public_key((page_files / "north.pub").read_bytes())
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == public
    for secret in ("ca.key", "server.key", "north"):
        assert (page_files / secret).stat().st_mode & 0o077 == 0


def handshake(folder: Path, name: str) -> None:
    """Shake hands in memory, as strictly as Python does from 3.13 on."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=folder / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    )
    for _ in range(3):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ends[0].version() == "TLSv1.3"
