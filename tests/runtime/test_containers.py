"""Containers are started like the units. These tests start no container."""

import re
from pathlib import Path

import pytest
import yaml

from dpfact_flower.machine.flower import QUIET
from dpfact_flower.runtime.superlink import tool
from tests.runtime.page import unit_of, written

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = {
    ("centre", "superlink"): "dpfact-centre",
    ("hospital", "node"): "dpfact-node",
    ("hospital", "site"): "dpfact-site",
}
BETWEEN_CONTAINERS = {"node": {"--host": "0.0.0.0"}, "site": {"--host": "node"}}
"""Options that a unit does not have, because two containers do not share a loopback."""


def composed(name: str) -> dict:
    return yaml.safe_load(written(f"{name}.compose.yaml"))


def stages() -> dict[str, str]:
    """Return the text of each stage of the Dockerfile."""
    parts = re.split(r"^FROM \S+ AS (\w+)\n", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options(words) -> dict[str, str]:
    """Return the options with their values, in any notation."""
    text = " ".join(words).replace("=", " ").split()
    found: dict[str, str] = {}
    for word in text:
        if word.startswith("--"):
            found[word] = ""
        elif found:
            found[list(found)[-1]] = word
    return found


@pytest.mark.parametrize(("file", "service"), UNITS)
def test_a_container_is_started_with_the_options_of_its_unit(file, service):
    made = composed(file)["services"][service]
    command, environment = unit_of(written(f"{UNITS[file, service]}.service"), {})
    wanted = options(command) | BETWEEN_CONTAINERS.get(service, {})
    wanted.pop("--node-user", None)  # the owner of another container's port is not visible
    assert options(made["command"]) == wanted
    own = {**common_environment(), **made.get("environment", {})}
    assert own == {key: each for key, each in environment.items() if key != "PATH"}


def common_environment() -> dict[str, str]:
    (text,) = re.findall(r"^ENV (.*)$", stages()["common"].replace("\\\n", ""), re.M)
    return {key: each for key, _, each in (w.partition("=") for w in text.split()) if key != "PATH"}


@pytest.mark.parametrize(("file", "service"), UNITS)
def test_a_container_has_no_more_rights_than_its_unit(file, service):
    made = composed(file)["services"][service]
    assert made["read_only"]
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges:true"]
    assert "ports" not in made
    assert re.fullmatch(r"\$\{[A-Z]+_USER:\?id -u dpfact-\w+\}", made["user"])  # never root


def test_the_data_and_the_network_are_two_containers():
    made = composed("hospital")
    node, site = made["services"]["node"], made["services"]["site"]
    assert node["user"] != site["user"]
    assert node["volumes"] == ["/srv/dpfact/node:/srv/dpfact/node"]
    assert site["volumes"] == ["/srv/dpfact/site:/srv/dpfact/site"]
    (only,) = site["networks"]
    assert made["networks"][only]["internal"]
    assert only in node["networks"]


def test_the_patients_memory_goes_to_no_disk():
    """This holds if memory is short, and if a process crashes."""
    made, unit = composed("hospital")["services"]["site"], written("dpfact-site.service")
    assert made["memswap_limit"] == made["mem_limit"]
    assert made["ulimits"] == {"core": 0}
    assert {"MemorySwapMax=0", "LimitCORE=0", "OOMPolicy=continue"} < set(unit.split())


def test_each_image_is_a_stage_that_starts_an_installed_command():
    for (file, service), unit in UNITS.items():
        image = composed(file)["services"][service]["image"].removeprefix("dpfact-")
        (words,) = re.findall(r"^ENTRYPOINT (\[.*\])$", stages()[image], re.M)
        first, *more = yaml.safe_load(words)
        assert Path(tool(Path(first).name)).exists()
        command, _ = unit_of(written(f"{unit}.service"), {})
        assert [first, *more] == command[: 1 + len(more)]


def test_no_image_reports_to_anybody_or_runs_as_root():
    assert common_environment() == {k: v for k, v in QUIET.items() if k.startswith("FLWR_")}
    assert "USER 65534:65534" in stages()["common"]
    assert not any("USER" in text for name, text in stages().items() if name != "common")
