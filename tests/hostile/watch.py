"""What must hold whatever is read or asked, and the data that must not be seen."""

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
"""Begins every identifier and code of the site's patients; and a count that one of them has."""
LONGEST = 1024
"""Bytes of an error or a line of the log, at most."""
CODES = {"procedures": 4, "diagnoses": 5}
SIZES = tuple(CODES.values())


def canary_site() -> SiteData:
    """A few patients whose identifiers, codes and counts would be known again anywhere."""
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
    """Looks at everything that is said while it is a context, and fails at what must not be."""

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
        """Note what is wrong with a line: who logs may catch what is raised here."""
        line = record.getMessage()
        if ": unexpected " in line or "\n" in line or "\r" in line:
            self._problems.append(line)
        try:
            check_text(line)
        except AssertionError as error:
            self._problems.append(str(error))


def check_text(text: str) -> None:
    """Hold what was said to its length, and to nothing of a patient."""
    assert len(text.encode(errors="replace")) <= LONGEST, f"{len(text)} characters: {text[:200]}"
    assert not any(canary in text for canary in CANARIES), f"a canary in {text[:300]!r}"


def check_sent(*parts: Any) -> None:
    """Hold what is sent to nothing of a patient."""
    whole = b"".join(p.tobytes() if isinstance(p, np.ndarray) else repr(p).encode() for p in parts)
    assert not any(canary.encode() in whole for canary in CANARIES)


def read(action: Callable[[], object], *, names: str) -> str:
    """Read something damaged: the code of an error of ours that names it, or "read"."""
    try:
        action()
    except DPFactError as error:
        text, code = str(error), error.code
    else:
        return "read"
    check_text(text)
    assert names in text
    return code
