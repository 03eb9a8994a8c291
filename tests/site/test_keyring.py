"""A hospital's keys for secure sums, and access to their files."""

import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.privacy.secure_sum.keys import new_signing_key, public_text, read_signing_key
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site import secure
from dpfact_flower.site.secure import keyring_of


@pytest.fixture
def settings(tmp_path) -> SiteSettings:
    """Settings of a site with two valid files."""
    pem = new_signing_key()
    key, peers = tmp_path / "site.pem", tmp_path / "peers"
    key.write_bytes(pem)
    key.chmod(0o600)
    peers.write_text(f"here {public_text(read_signing_key(pem))}\n")
    peers.chmod(0o644)
    return SiteSettings(secure_key=str(key), secure_peers=str(peers))


@pytest.mark.parametrize(
    ("file", "mode", "says"),
    [("peers", 0o664, "write to"), ("site.pem", 0o622, "write to"),
     ("site.pem", 0o640, "read"), ("site.pem", 0o604, "read")],
)  # fmt: skip
def test_a_file_that_others_may_write_to_or_a_key_that_they_may_read_is_refused(
    tmp_path, settings, file, mode, says
):
    (tmp_path / file).chmod(mode)
    with pytest.raises(StateError, match=f"others may {says} it"):
        keyring_of(settings, "here")


@pytest.mark.parametrize("hidden", ["\u2028", "\x85", "\x0b"])
def test_no_comment_of_a_hospital_hides_a_line_that_no_editor_shows(tmp_path, settings, hidden):
    peers = tmp_path / "peers"
    stranger = public_text(read_signing_key(new_signing_key()))
    peers.write_text(f"{peers.read_text()}# ours{hidden}stranger {stranger}\n", encoding="utf-8")
    assert [*keyring_of(settings, "here").peers] == ["here"]


@pytest.mark.parametrize("damage", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"{")])
def test_a_damaged_key_of_a_job_is_refused_and_a_damaged_pending_one_is_ignored(tmp_path, damage):
    terms = secure.keys.Terms("job", "settings", ("a", "b", "c"), 1, 0)
    files = secure._Files(tmp_path / "job", durable=False)
    damage(tmp_path / ".secure-job")
    assert files.job(terms) is None
    (tmp_path / "job").mkdir()
    damage(tmp_path / "job" / "secure-job.json")
    with pytest.raises(StateError, match=r"secure-job.json: damaged; ask the centre"):
        files.job(terms)
