"""Time the rounds of a federated run, and the parts of rounds outside the solver."""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.site import local_fit
from dpfact_flower.site.store import SiteStore
from dpfact_flower.strategy import DPFact
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "measures": ((local_fit, "squared_error"),),
    "state": tuple((SiteStore, name) for name in ("load", "save", "keep_only", "note")),
    "ledger": tuple((Ledger, name) for name in ("__init__", "rows", "charge", "close")),
    "messages": (
        *(
            (records, name)
            for name in ("ask", "read_request", "read_reply", "answer", "serialised_bytes")
        ),
        (RoundRequest, "from_wire"),
        (SiteReply, "from_wire"),
    ),
    "server": ((Coordinator, "close_round"),),
}
"""The functions of each part. None of these functions calls another."""


def watch() -> dict[str, list[float]]:
    """Time all calls from now on. Return the seconds by part, in lists that grow with each call."""
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    for part, functions in PARTS.items():
        for owner, name in functions:
            setattr(owner, name, _timed(owner, name, seconds[part]))
    return seconds


def watch_rounds() -> Callable[[], list[float]]:
    """From now on, time each round until the next round begins (the last until its end).

    The times include Flower's own work, the update and the checkpoint, which a round's record
    cannot contain. Call the returned function to get the seconds so far.
    """
    began: list[float] = []
    ended: list[float] = []
    strategy: Any = DPFact
    ask, take = strategy.configure_train, strategy.aggregate_train

    def configure_train(*arguments: Any, **more: Any) -> Any:
        began.append(time.perf_counter())
        return ask(*arguments, **more)

    def aggregate_train(*arguments: Any, **more: Any) -> Any:
        found = take(*arguments, **more)
        ended.append(time.perf_counter())
        return found

    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train
    return lambda: [b - a for a, b in zip(began, [*began[1:], *ended[-1:]], strict=True)]


def _timed(owner: Any, name: str, seconds: list[float]) -> Any:
    found = vars(owner)[name]
    function: Callable[..., Any] = getattr(found, "__func__", found)

    @wraps(function)
    def timed(*arguments: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **more)
        finally:
            seconds.append(time.perf_counter() - began)

    return classmethod(timed) if isinstance(found, classmethod) else timed
