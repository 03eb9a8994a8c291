"""Which Flower this package works with, and how Flower's processes are started.

A deployment uses names of Flower's inside that may go with any release. `tests/machine/test_flower`
lists them, tries each with the Flower that is installed, and says where it is used.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from dpfact_flower.errors import MissingDependencyError

KNOWN = ("1.41", "1.42")
"""Releases that this was tried with, the newest last. A deployment starts with no other."""
RANGE = ">=1.41,<1.43"
"""The same for pip, as pyproject.toml has it."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment in which Flower and Ray call nobody at home; set it before Flower is imported."""


def version_faults() -> list[str]:
    """What is wrong with the version of Flower that is installed; nothing if it is a known one."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        installed = "of no known version"
    if ".".join(installed.split(".")[:2]) in KNOWN:
        return []
    return [
        f"Flower {installed} is installed, and a deployment knows {' and '.join(KNOWN)} alone from "
        f"inside: pip install 'flwr{RANGE}'"
    ]


def refuse_unknown_version() -> None:
    """Refuse a Flower whose inside may differ from that of the known ones."""
    if faults := version_faults():
        raise MissingDependencyError(f"nothing was started: {faults[0]}")
