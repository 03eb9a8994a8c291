"""`dpfact site` and `dpfact keys`: a hospital's own commands, and the keys that others pin."""

import json

import pytest

from dpfact_flower.errors import DataError, SettingsError, StateError
from dpfact_flower.privacy.secure_sum.keys import fingerprint, read_public_key
from dpfact_flower.runtime.serve import federate_config
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.secure import keyring_of, read_peers
from tests.commands import dpfact

RUN = {"privacy": "patient", "epsilon": 4.0, "rank": 3, "refine-rounds": 1, "noise-seed": 1}


@pytest.fixture
def state(cohort_folder, tmp_path):
    """The state of three sites after a run, without their own models."""
    federate_config({**RUN, "data": str(cohort_folder), "out": str(tmp_path / "run")})
    for path in (tmp_path / "run.sites").rglob("state-*.npz"):
        path.unlink()
    return tmp_path / "run.sites"


@pytest.fixture
def config(cohort_folder, state, tmp_path):
    """The settings of one of these sites."""
    path = tmp_path / "north.toml"
    path.write_text(
        f'site = "site-1"\ndata-path = "{cohort_folder}/site-1.npz"\nstate-dir = "{state}"\n'
        'allow-privacy = "patient"\nmax-epsilon = 10.0\n'
    )
    return path


@pytest.mark.slow
def test_metrics_say_what_is_left(config):
    found = json.loads(dpfact("site", "metrics", "--config", config))
    assert found["epsilon_left"] == pytest.approx(6.0)


@pytest.mark.slow
def test_refit_fits_every_run_that_has_ended_and_one_by_its_name_again(config, state):
    def refit(*more, code=0):
        return dpfact("site", "refit", "--config", config, *more, code=code)

    assert "closed runs: 1; now replace" in dpfact("site", "close", "--config", config)
    old = state / "site-1" / "a-old" / "ending.npz"
    old.parent.mkdir()
    old.write_bytes(b"damaged")
    failed, fitted = refit(code=1).splitlines()
    assert "a-old: not refitted: " in failed
    assert "explains" in fitted
    old.unlink()
    (job,) = [path.parent.name for path in (state / "site-1").glob("*/state-*.npz")]
    with pytest.raises(StateError, match="no finished run in patient mode is left to fit"):
        refit()
    assert job in refit("--job", job)
    assert "has not ended here" in refit("--job", "other", code=1)


def keys(*arguments):
    return dpfact("keys", *arguments, width=40).splitlines()


def test_keys_of_two_hospitals_fit_each_other(tmp_path, monkeypatch):
    lines = [keys("make", tmp_path / f"{name}.pem", "--site", name)[0] for name in ("north", "s")]
    assert lines[0] == keys("show", tmp_path / "north.pem", "--site", "north")[0]
    assert (tmp_path / "north.pem").stat().st_mode & 0o777 == 0o600
    peers = tmp_path / "peers.txt"
    peers.write_text("# all of us\n\n" + "\n".join(f"{line}  # by post" for line in lines) + "\n")
    given = [line.split()[:2] for line in lines]
    expected = [f"{name}: {fingerprint(read_public_key(key))}" for name, key in given]
    assert keys("show", peers) == expected
    settings = SiteSettings(secure_key=str(tmp_path / "north.pem"), secure_peers=str(peers))
    monkeypatch.setattr("os.geteuid", lambda: -1)  # the files may belong to another user
    assert keyring_of(settings, "north").peers.keys() == {"north", "s"}
    for letter in "A/":  # the least and the largest key
        peers.write_text(f"s ed25519:{letter * 43}=")
        with pytest.raises(SettingsError, match="this site's own name, 's'"):
            keyring_of(settings, "s")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("north", "line 1 must be NAME KEY"),
        ("north ed25519:short more", "line 1 must be NAME KEY"),
        ("# x\nnorth ed25519:short", "line 2: public key"),
        ("a ed25519:Rs7RjyT7ZzZESyjq4Gw3UJG3si0LxpEmjktDbS/ZXtU=\n" * 2, "line 2 .* once"),
    ],
)
def test_a_peers_file_that_is_wrong_names_its_line(tmp_path, content, says):
    (tmp_path / "peers").write_text(content)
    with pytest.raises(SettingsError, match=says):
        read_peers(tmp_path / "peers")


def test_names_and_files_that_cannot_be_are_refused(tmp_path):
    for word in ("make", "show"):
        with pytest.raises(DataError, match="--site"):
            keys(word, tmp_path / "a.pem", "--site", "no name")
    keys("make", tmp_path / "a.pem", "--site", "a")
    before = (tmp_path / "a.pem").read_bytes()
    with pytest.raises(SettingsError, match="never replaced"):
        keys("make", tmp_path / "a.pem", "--site", "a")
    assert (tmp_path / "a.pem").read_bytes() == before
    with pytest.raises(SettingsError, match="cannot be read"):
        keys("show", tmp_path / "nothing")
    (tmp_path / "text.pem").touch(mode=0o600)
    (tmp_path / "text.pem").write_text("no key")
    with pytest.raises(SettingsError, match="Ed25519"):
        keys("show", tmp_path / "text.pem", "--site", "a")
