"""Conditions that hold for any input, and the data that must not be seen."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DPFactError
from dpfact_flower.tensor import SparseTensor

COUNT = 7730917
CANARIES = ("CANARY", str(COUNT))
"""Prefix of all identifiers and codes of the site's patients, and a count of one patient."""
LONGEST = 1024
"""Largest number of bytes in an error or a log line."""
CODES = {"procedures": 4, "diagnoses": 5}
SIZES = tuple(CODES.values())


def canary_site() -> SiteData:
    """Return a site with a few patients whose identifiers, codes and counts are recognisable."""
    rng = np.random.default_rng(5)
    cells = np.unique(rng.integers(0, (12, *SIZES), (50, 3)), axis=0)
    counts = rng.integers(1, 5, len(cells))
    counts[7] = COUNT
    return SiteData(
        "north",
        SparseTensor.from_coo(cells, counts, (12, *SIZES)),
        tuple(Vocabulary(m, tuple(f"CANARY-{m}-{n}" for n in range(k))) for m, k in CODES.items()),
        labels=rng.integers(0, 2, 12).astype(np.int8),
        patients=tuple(f"CANARY-{n}" for n in range(12)),
    )


class Watch(logging.Handler):
    """A context that reads all log lines and fails at forbidden ones."""

    def __enter__(self) -> "Watch":
        self._logger = logging.getLogger("dpfact_flower")
        self._before = self._logger.level, self._logger.propagate, self._logger.handlers
        self._logger.handlers, self._logger.propagate = [self], False
        self._logger.setLevel(logging.DEBUG)
        self._problems: list[str] = []
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        level, self._logger.propagate, self._logger.handlers = self._before
        self._logger.setLevel(level)
        if kind is None:
            assert self._problems == []

    def emit(self, record: logging.LogRecord) -> None:
        """Record the faults of a line, because the logging code may catch an exception."""
        line = record.getMessage()
        if ": unexpected " in line or "\n" in line or "\r" in line:
            self._problems.append(line)
        try:
            check_text(line)
        except AssertionError as error:
            self._problems.append(str(error))


def check_text(text: str) -> None:
    """Check that a text is short and contains no patient data."""
    assert len(text.encode(errors="replace")) <= LONGEST, f"{len(text)} characters: {text[:200]}"
    assert not any(canary in text for canary in CANARIES), f"a canary in {text[:300]!r}"


def check_sent(*parts: Any) -> None:
    """Check that sent data contain no patient data."""
    whole = b"".join(p.tobytes() if isinstance(p, np.ndarray) else repr(p).encode() for p in parts)
    assert not any(canary.encode() in whole for canary in CANARIES)


def read(action: Callable[[], object], *, names: str) -> str:
    """Read something damaged. Return the code of our error, which must name it, or "read"."""
    try:
        action()
    except DPFactError as error:
        text, code = str(error), error.code
    else:
        return "read"
    check_text(text)
    assert names in text
    return code
