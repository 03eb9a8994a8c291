"""`dpfact keys`: what a hospital makes once, and what the others pin."""

import pytest

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.privacy.secure_sum.keys import fingerprint, read_public_key
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.secure import keyring_of, read_peers
from tests.commands import dpfact


def run(*arguments):
    return dpfact("keys", *arguments, width=40).splitlines()


def test_keys_of_two_hospitals_fit_each_other(tmp_path):
    lines = [run("make", tmp_path / f"{name}.pem", "--site", name)[0] for name in ("north", "s")]
    assert lines[0] == run("show", tmp_path / "north.pem", "--site", "north")[0]
    assert (tmp_path / "north.pem").stat().st_mode & 0o777 == 0o600
    peers = tmp_path / "peers.txt"
    peers.write_text("# all of us\n\n" + "\n".join(f"{line}  # by post" for line in lines) + "\n")
    shown = run("show", peers)
    assert shown == [
        f"{line.split()[0]}: {fingerprint(read_public_key(line.split()[1]))}" for line in lines
    ]
    settings = SiteSettings(secure_key=str(tmp_path / "north.pem"), secure_peers=str(peers))
    assert keyring_of(settings, "north").peers.keys() == {"north", "s"}
    with pytest.raises(SettingsError, match="this site's own name, 's'"):
        keyring_of(settings, "s")


def test_a_key_is_never_replaced(tmp_path):
    run("make", tmp_path / "a.pem", "--site", "a")
    before = (tmp_path / "a.pem").read_bytes()
    with pytest.raises(SettingsError, match="never replaced"):
        run("make", tmp_path / "a.pem", "--site", "a")
    assert (tmp_path / "a.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("north", "line 1 must be NAME KEY"),
        ("# x\nnorth ed25519:short", "line 2: public key"),
        ("a ed25519:Rs7RjyT7ZzZESyjq4Gw3UJG3si0LxpEmjktDbS/ZXtU=\n" * 2, "line 2 .* once"),
    ],
)
def test_a_peers_file_that_is_wrong_names_its_line(tmp_path, content, says):
    (tmp_path / "peers").write_text(content)
    with pytest.raises(SettingsError, match=says):
        read_peers(tmp_path / "peers")


def test_names_and_files_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(DataError, match="--site"):
        run("make", tmp_path / "a.pem", "--site", "no name")
    with pytest.raises(SettingsError, match="cannot be read"):
        run("show", tmp_path / "nothing")
    (tmp_path / "text.pem").touch(mode=0o600)
    (tmp_path / "text.pem").write_text("no key")
    with pytest.raises(SettingsError, match="Ed25519"):
        run("show", tmp_path / "text.pem", "--site", "a")
