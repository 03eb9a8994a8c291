"""Environment in which Flower and Ray call nobody at home."""

from __future__ import annotations

from collections.abc import Mapping

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Flower reads the first when it is imported: it has to be set before a process starts."""


def quietly(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment with these variables set, whatever they were."""
    return {**environment, **QUIET}


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that sends nothing by way of a proxy, what is meant for loopback included."""
    return {key: each for key, each in environment.items() if not key.lower().endswith("_proxy")}
