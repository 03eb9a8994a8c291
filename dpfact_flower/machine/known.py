"""The Flower that is known from inside, and whether it is the one that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from dpfact_flower.errors import MissingDependencyError

FLOWER = "1.41"
"""The Flower whose inside a hospital's two processes know."""


def other_flower() -> list[str]:
    """What is wrong with the version of Flower that is installed; nothing if it is the one."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        found = "of no known version"
    if found.split(".")[:2] == FLOWER.split("."):
        return []
    return [
        f"Flower {found} is installed, and the executor knows Flower {FLOWER} alone from inside: "
        f"pip install 'flwr=={FLOWER}.*'"
    ]


def refuse_other_flower() -> None:
    """Refuse a Flower whose inside may differ from the known one's.

    Raises
    ------
    MissingDependencyError
        Naming the version to install.
    """
    if faults := other_flower():
        raise MissingDependencyError(f"nothing was started: {faults[0]}")
