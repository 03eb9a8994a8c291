"""The five files that describe a release of the package agree."""

import json
import re
import tomllib
from pathlib import Path

import yaml

from dpfact_flower import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CODEMETA = json.loads((ROOT / "codemeta.json").read_text())


def test_one_version_and_one_date():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## \[([\d.]+)\] - (\S+)$", changelog, re.MULTILINE)[0]
    app = tomllib.loads((ROOT / "simulation" / "dpfact-app" / "pyproject.toml").read_text())
    versions = {PROJECT["version"], CITATION["version"], CODEMETA["version"], version,
                app["project"]["version"]}  # fmt: skip
    assert versions == {__version__}
    assert CITATION["date-released"].isoformat() == CODEMETA["datePublished"] == date


def test_codemeta_says_what_the_citation_and_the_package_say():
    assert CODEMETA["name"] == CITATION["title"] == PROJECT["name"]
    assert CODEMETA["description"] == CITATION["abstract"] == PROJECT["description"]
    assert CODEMETA["keywords"] == CITATION["keywords"]
    assert [each["name"] for each in CODEMETA["author"]] == [
        each["name"] for each in CITATION["authors"]
    ]
    assert CITATION["license"] == PROJECT["license"]
    assert CODEMETA["license"] == f"https://spdx.org/licenses/{PROJECT['license']}"
    urls = PROJECT["urls"]
    assert CODEMETA["codeRepository"] == CITATION["repository-code"] == urls["Homepage"]
    assert (CODEMETA["issueTracker"], CODEMETA["softwareHelp"]) == (
        urls["Issues"], urls["Documentation"],
    )  # fmt: skip
    assert CODEMETA["runtimePlatform"] == f"Python {PROJECT['requires-python']}"
    paper = CITATION["preferred-citation"]
    assert CODEMETA["referencePublication"] == {
        "type": "ScholarlyArticle", "name": paper["title"],
        "identifier": f"https://doi.org/{paper['doi']}",
    }  # fmt: skip
