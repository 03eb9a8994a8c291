"""`dpfact init` and the Flower App that it copies: Flower Hub would accept them, and they run."""

import io
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from flwr.cli.app_cmd import publish as command
from flwr.cli.auth_plugin.oidc_cli_plugin import OidcCliPlugin
from flwr.cli.build import build_fab_from_files
from packaging.requirements import Requirement

from dpfact_flower import __version__
from dpfact_flower.cli.options import APP_FOLDER, app_config
from dpfact_flower.cli.run import FILES
from dpfact_flower.errors import DPFactError
from dpfact_flower.evaluation.run_folder import read_summary
from dpfact_flower.runtime.superlink import local_superlink
from tests.commands import dpfact

ROOT = Path(__file__).parents[2]
UPLOADED = {
    ".gitignore", "LICENSE", "README.md", "pyproject.toml", "dpfact_app/__init__.py",
    "dpfact_app/client_app.py", "dpfact_app/server_app.py",
}  # fmt: skip


def published(app: Path) -> dict[str, bytes]:
    """Return the files that would be published, by their path in the app's folder.

    Flower's own checks of names, licence, number, size and encoding run, and raise an error.
    """
    sent = {}

    def post(files, token):
        sent.update({path: file.read() for _, (path, file, _) in files})
        return SimpleNamespace(ok=True)

    logged_in = mock.Mock(OidcCliPlugin, access_token="of nobody")
    ours = {"_post_files": post, "load_cli_auth_plugin_from_connection": lambda *_: logged_in}
    with mock.patch.dict(command.__globals__, ours):  # `publish` hides the module of that name
        command(app)
    return sent


@pytest.fixture
def project(tmp_path):
    """A project written by `dpfact init`."""
    folder = tmp_path / "our-study"
    dpfact("init", folder, "-s", "epsilon=2", "-s", "rank=7", "--publisher", "north")
    return folder


def test_a_hospitals_project_is_ours_with_its_names_and_settings(project):
    files = (path for path in project.rglob("*") if path.is_file())
    assert {path.relative_to(project).as_posix() for path in files} == {*FILES}
    written = tomllib.loads((project / "pyproject.toml").read_text())
    assert written["project"]["name"] == "our-study"
    assert written["tool"]["flwr"]["app"]["publisher"] == "north"
    assert app_config(project) == {**app_config(APP_FOLDER), "epsilon": 2.0, "rank": 7}
    assert "dpfact-app" not in "".join((project / file).read_text() for file in FILES)


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_flower_hub_would_take_it(whose, project):
    """Use Flower's checks for `flwr app publish`, and for the bundle that the Hub builds."""
    files = published(APP_FOLDER if whose == "ours" else project)
    assert set(files) == UPLOADED
    bundle, found = build_fab_from_files(files)
    assert found.fab_format_version == 1
    assert found.flwr_version_min == "1.41"
    inside = set(zipfile.ZipFile(io.BytesIO(bundle)).namelist())
    assert inside == (UPLOADED - {".gitignore", "README.md"}) | {".info/CONTENT"}


def test_what_lies_beside_is_neither_published_nor_bundled(project):
    for stray in ("data/eicu/cohort.json", "runs/first/summary.json", "events.csv", "north.npz",
                  "codes.json", "notes.jsonl"):  # fmt: skip
        (project / stray).parent.mkdir(parents=True, exist_ok=True)
        (project / stray).write_text("{}")
    assert set(published(project)) == UPLOADED


def test_it_asks_for_this_version_under_this_licence():
    app = tomllib.loads((APP_FOLDER / "pyproject.toml").read_text())
    needs = {each.name: each for each in map(Requirement, app["project"]["dependencies"])}
    assert __version__ in needs["dpfact-flower"].specifier
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert needs["flwr"].specifier == Requirement(ours["dependencies"][0]).specifier
    assert needs["dpfact-flower"].extras < set(ours["optional-dependencies"])
    assert (APP_FOLDER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["full"], "full is not empty"),
        (["my_study"], "FOLDER: need a letter, then letters, digits and hyphens"),
        (["9lives"], "FOLDER: need a letter"),
        (["study", "--publisher", "St. Mary"], "--publisher: need a letter"),
        (["study", "-s", "rnak=3"], "did you mean 'rank'"),
        (["study", "-s", "epsilon=-1"], "epsilon: must"),
    ],
)
def test_what_is_no_project_is_refused_and_nothing_written(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(DPFactError, match=says):
        dpfact("init", *arguments)
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "thesis.tex"]


@pytest.mark.nightly
@pytest.mark.ray
def test_a_download_of_a_project_runs_as_its_readme_says(tmp_path):
    """The test has its own SuperLink, in place of the one that `flwr run` leaves behind."""
    here, study = tmp_path / "here" / "study", tmp_path / "study"
    dpfact("init", here, "-s", "rank=4", "-s", "privacy=none", "-s", "rounds=2")
    for path, content in published(here).items():  # all that `flwr new` unpacks
        (study / path).parent.mkdir(parents=True, exist_ok=True)
        (study / path).write_bytes(content)
    blocks = re.findall(r"(?:^    .+\n)+", (study / "README.md").read_text(), re.MULTILINE)
    chosen = [block for block in blocks if re.match(r"    (export|flwr run \. --stream)", block)]
    assert len(chosen) == 2
    with local_superlink(tmp_path / "flwr", simulation=True) as superlink:
        command_line = ["bash", "-euc", "".join(chosen)]
        subprocess.run(command_line, cwd=study, env=superlink.environment, check=True)
    summary = read_summary(study / "runs" / "first")
    assert (summary.sites, summary.rank, summary.rounds) == (6, 4, 2)
    assert (study / "runs" / "first" / "report.html").exists()
    assert set(published(study)) == UPLOADED
