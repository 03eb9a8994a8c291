"""What must hold whatever is read or asked, and the data that must not be seen."""

from __future__ import annotations

import logging
from collections import Counter
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
"""Bytes of a line of the log, at most."""
CODES = {"procedures": 4, "diagnoses": 5}


def canary_site() -> SiteData:
    """A few patients whose identifiers, codes and counts would be known again anywhere."""
    rng = np.random.default_rng(5)
    cells = np.unique(rng.integers(0, (12, *CODES.values()), (50, 3)), axis=0)
    counts = rng.integers(1, 5, len(cells))
    counts[7] = COUNT
    vocabularies = tuple(
        Vocabulary(name, tuple(f"CANARY-{name}-{n}" for n in range(size)))
        for name, size in CODES.items()
    )
    return SiteData(
        "north",
        SparseTensor.from_coo(cells, counts, (12, *CODES.values())),
        vocabularies,
        labels=rng.integers(0, 2, 12).astype(np.int8),
        patients=tuple(f"CANARY-{n}" for n in range(12)),
    )


class Watch(logging.Handler):
    """Everything that was said, while this is a context: what is wrong with it, and how often what.

    Attributes
    ----------
    seen : Counter
        Outcomes, by name.
    problems : list of str
        What must not happen.
    longest : int
        Bytes of the longest line of the log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self.longest = 0
        self.what = ""

    def __enter__(self) -> Watch:
        logger = logging.getLogger("dpfact_flower")
        self._before = logger.level, logger.propagate, logger.handlers
        logger.handlers, logger.propagate = [self], False
        logger.setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("dpfact_flower")
        level, logger.propagate, logger.handlers = self._before
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a line of the log."""
        line = record.getMessage()
        self.longest = max(self.longest, len(line.encode(errors="replace")))
        if len(line.encode(errors="replace")) > LONGEST:
            self.problem(f"a line of {len(line)} characters: {line[:200]}")
        if "\n" in line or "\r" in line:
            self.problem(f"a log line that is two: {line[:200]!r}")
        if ": unexpected " in line:
            self.problem(line)
        self.text(line)

    def problem(self, text: str) -> None:
        """Note what must not happen."""
        self.problems.append(f"{self.what}: {text}")

    def text(self, text: str) -> None:
        """Look for the canaries in what was said."""
        if any(canary in text for canary in CANARIES):
            self.problem(f"a canary in {text[:300]!r}")

    def sent(self, *parts: Any) -> None:
        """Look for them in what is sent."""
        whole = b"".join(p.tobytes() if isinstance(p, np.ndarray) else repr(p).encode()
                         for p in parts)  # fmt: skip
        if any(canary.encode() in whole for canary in CANARIES):
            self.problem("a canary in a reply")

    def read(self, what: str, action: Callable[[], object], *, names: str = "") -> None:
        """Read something damaged: it succeeds, or fails with an error of ours that names it."""
        self.what, kind = what, what.partition(",")[0]
        try:
            action()
            self.seen[f"{kind}: read"] += 1
        except DPFactError as error:
            self.seen[f"{kind}: {error.code}"] += 1
            self.text(str(error))
            if names not in str(error):
                self.problem(f"an error that does not name {names}: {str(error)[:200]}")
            if len(str(error)) > LONGEST:
                self.problem(f"an error of {len(str(error))} characters: {str(error)[:200]}")
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
            self.problem(f"{type(error).__name__} at {place}: {str(error)[:200]}")
