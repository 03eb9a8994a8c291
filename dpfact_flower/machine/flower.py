"""Define the supported versions of Flower, and the environment of Flower's processes.

A deployment uses private functions and classes of Flower, which any release of Flower may remove.
`tests/machine/test_flower` checks that the installed Flower has all private names used by DPFact.
"""

from importlib.metadata import version

from dpfact_flower.errors import MissingDependencyError

KNOWN = ("1.41", "1.42")
"""Tested releases of Flower, newest last. A deployment refuses all other releases."""
RANGE = ">=1.41,<1.43"
"""The tested releases in pip's syntax, as in pyproject.toml."""
CLOCK_SECONDS = 3.0
"""Accepted error of a site's clock, in seconds. Flower refuses a clock 5 s ahead."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment variables that turn off telemetry. Set them before importing Flower."""


def refuse_unknown_version() -> None:
    """Raise an error for an untested version of Flower, whose private functions may differ."""
    installed = version("flwr")
    if ".".join(installed.split(".")[:2]) not in KNOWN:
        raise MissingDependencyError(
            f"Flower {installed} is installed, but {' or '.join(KNOWN)} is needed: "
            f"pip install 'flwr{RANGE}'"
        )
