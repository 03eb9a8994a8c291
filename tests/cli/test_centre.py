"""`dpfact centre` and `dpfact site init`: the files for both sides, and refusals."""

import os
import re
import shutil
import ssl
import subprocess
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpfact_flower.errors import SettingsError
from dpfact_flower.runtime.installation import new_authority
from dpfact_flower.runtime.superlink import Connection
from dpfact_flower.site.hospital import read_site_settings
from tests.commands import dpfact

pytestmark = pytest.mark.slow

FINGERPRINT = r"(?:[0-9a-f]{4} ){7}[0-9a-f]{4}"


def init(tmp_path, *more, name="north", ca="ca.crt", folder="site") -> str:
    """Set up a hospital."""
    words = ["--centre", "centre.example", "--ca", tmp_path / "centre" / ca, "--max-epsilon", 4]
    words += ["--data", tmp_path / "north.npz", "--folder", tmp_path / folder]
    return dpfact("site", "init", name, *words, *more)


@pytest.fixture
def centre(cohort, tmp_path):
    """A centre's folder, and next to it the data of the hospital north."""
    replace(cohort.sites[0], name="north").save(tmp_path / "north.npz")
    dpfact("centre", "init", "centre.example", "--folder", tmp_path / "centre")
    return tmp_path / "centre"


def test_a_hospital_gets_safe_settings_and_files_for_their_users_alone(centre, tmp_path):
    said = init(tmp_path, "-s", "max-rank=30")
    folder = tmp_path / "site"
    settings = read_site_settings(folder / "site" / "north.toml")
    assert (settings.site, settings.allow_privacy, settings.max_epsilon) == ("north", "patient", 4)
    assert (settings.budget_delta, settings.reply_after, settings.max_rank) == (1e-5, 60.0, 30)
    assert settings.state_dir == str(folder / "site" / "state")
    node, site = folder / "node", folder / "site"
    assert (node / "secret").read_bytes() == (site / "secret").read_bytes()
    assert len((node / "secret").read_bytes()) == 32
    for part in (node, site):
        for path in (part, *part.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path
    key = serialization.load_ssh_private_key((node / "north").read_bytes(), None)
    public = serialization.load_ssh_public_key((folder / "north.pub").read_bytes())
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == public
    lines = said.splitlines()
    checked = lines[lines.index("Checked so far:") + 1 :]
    assert len(checked) > 5
    assert all(line.startswith("OK ") or line.endswith("install below /opt") for line in checked)
    assert len(set(re.findall(FINGERPRINT, said))) == 2


def test_both_sides_read_the_same_fingerprints_to_each_other(centre, tmp_path, monkeypatch):
    again = dpfact("centre", "init", "centre.example", "--folder", tmp_path / "other")
    (own,) = re.findall(FINGERPRINT, again)
    theirs, authority = re.findall(FINGERPRINT, init(tmp_path, ca="../other/ca.crt"))
    assert authority == own
    asked, answer = [], {"success": True, "node-id": "77"}
    monkeypatch.setattr(Connection, "_ask", lambda *words: asked.append(words) or answer)
    admit = ["centre", "admit", tmp_path / "site" / "north.pub", "--folder", centre]
    with pytest.raises(SettingsError, match="a private key, which must never leave"):
        dpfact("centre", "admit", tmp_path / "site" / "node" / "north", "--folder", centre)
    for other in (own, theirs[:-4]):
        with pytest.raises(SettingsError, match="nothing was registered"):
            dpfact(*admit, "--fingerprint", other)
    dpfact(*admit, answer="n\n", code=1)
    assert not asked
    assert theirs in dpfact(*admit, answer="y\n")
    assert "as node 77" in dpfact(*admit, "--fingerprint", theirs)
    words = f"{centre}/flwr supernode register {admit[2]} centre --name north"
    given = [" ".join([link.environment["FLWR_HOME"], *more]) for link, *more in asked]
    assert given == [words] * 2
    answer = {"error-message": "Public key already in use."}
    with pytest.raises(SettingsError, match=r"north was not registered: .*in use\. Its hospital"):
        dpfact(*admit, answer="y\n")


def test_the_certificate_is_for_the_centres_name_and_the_superlinks_helper_alone(centre):
    again = ("centre.example", "--folder", centre, "--renew")
    for _ in range(2):
        for name in ("centre.example", "127.0.0.1"):
            handshake(centre, name)
        for name in ("other.example", "127.0.0.2", "ca"):
            with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
                handshake(centre, name)
        before = (centre / "server.pem").read_bytes()
        os.chown(centre / "flwr", 65534 if os.geteuid() == 0 else -1, -1)  # as install.sh does
        dpfact("centre", "init", *again)
        assert (centre / "server.pem").read_bytes() != before
        assert (centre / "server.key").stat().st_uid == (centre / "flwr").stat().st_uid
        assert (centre / "server.pem").stat().st_mode & 0o777 == 0o644
    for secret in ("ca.key", "server.key"):
        assert (centre / secret).stat().st_mode & 0o077 == 0
    before = (centre / "server.pem").read_bytes()
    garbled, another = (centre / "ca.crt").read_bytes(), new_authority()[0]
    for key, error in ((garbled, "need the key that dpfact"), (another, "is not the key of")):
        (centre / "ca.key").write_bytes(key)
        with pytest.raises(SettingsError, match=rf"ca\.key: .*{error}"):
            dpfact("centre", "init", *again)
        assert (centre / "server.pem").read_bytes() == before
    with pytest.raises(SettingsError, match=r"connect to 'centre\.example': give this name"):
        dpfact("centre", "init", "other.example", *again[1:])
    (centre / "server.pem").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"server\.pem: is damaged; delete it"):
        dpfact("centre", "init", *again)
    (centre / "ca.key").unlink()
    with pytest.raises(SettingsError, match=rf"bring ca\.key back into {centre}"):
        dpfact("centre", "init", *again)


def handshake(folder, name):
    """Make a TLS handshake in memory, with the strict checks of Python 3.13."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=folder / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, True)
    for _ in range(3):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ends[0].version() == "TLSv1.3"


def test_nothing_is_replaced(centre, tmp_path):
    init(tmp_path)
    (centre / "ca.key").unlink()  # it is in a safe
    site = tmp_path / "site"
    for folder, owner, part in ((centre, "centre", "flwr"), (site, "hospital", "node")):
        for _ in range(2):
            before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            with pytest.raises(SettingsError, match=f"{folder} is a {owner}'s .* never replaced"):
                init(tmp_path, "-s", "max-rank=9", folder=folder.name)
            with pytest.raises(SettingsError, match=f"{folder} is a {owner}'s .* never replaced"):
                dpfact("centre", "init", "centre.example", "--folder", folder)
            after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            assert before == after
            shutil.rmtree(folder / part, ignore_errors=True)


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to users")
def test_the_centres_user_owns_only_what_the_service_needs(centre):
    """The service's database, log and two caches are below flwr. Root runs the script."""
    script = (centre / "install.sh").read_text().replace("-R dpfact-centre", "-R 65534")
    (centre / "ca.key").unlink()  # it is in a safe
    stubs = "id() { :; }; cp() { :; }; systemctl() { :; }; "
    subprocess.run(["sh", "-c", stubs + script], check=True)
    given = [path.name for path in (centre, *centre.iterdir()) if path.stat().st_uid]
    assert sorted(given) == ["codes", "flwr", "runs", "server.key"]
    assert (centre / "dpfact-centre.service").read_text().count(f"{centre}/flwr/") == 4


WRONG = ["a b", "centre.example:443", "2001:db8::1", "centre..example", "x" * 65, "10.0.300.1"]


@pytest.mark.parametrize("name", WRONG)
def test_a_centre_of_a_wrong_name_is_refused_and_nothing_written(tmp_path, name):
    with pytest.raises(SettingsError, match="need an IPv4 address or a DNS name"):
        dpfact("centre", "init", name, "--folder", tmp_path / "centre")
    assert not (tmp_path / "centre").exists()


@pytest.mark.parametrize(
    ("changes", "words", "error"),
    [
        ({"name": "south"}, (), "the file belongs to site 'north'"),
        ({"ca": "ca.key"}, (), "--ca: need the ca.crt"),
        ({"folder": "a b"}, (), "letters, digits"),
        ({}, ("--centre", "2001:db8::1"), "--centre: need a DNS name or IPv4 address"),
        ({}, ("-s", "allow-privacy=none"), "max-epsilon: must be"),
        ({}, ("-s", "max-epsilon=9"), "use --max-epsilon"),
        ({}, ("-s", "max-epsilom=9"), "max-epsilom"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_written(centre, tmp_path, changes, words, error):
    with pytest.raises(SettingsError, match=error):
        init(tmp_path, *words, **changes)
    assert {path.name for path in tmp_path.iterdir()} == {"centre", "north.npz"}
