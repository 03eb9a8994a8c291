"""Audit 5: what a reply says beside its values, where something is refused, repeated or fails.

Two sites, one of which has a patient more with every code, receive the same requests: on a disk
that is full from the beginning, or once the patients have been read, with too little memory for
them, and as they should be; and then everything that costs nothing. Both must say the same, with
one code for whatever fails after the patients were read; and what costs nothing must not read them,
since that takes time, nor leave anything on the disk, since it may be asked for without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfact_flower.audit.finding import Finding, Tell, count_of, silent
from dpfact_flower.audit.hostile import CANARIES, joined
from dpfact_flower.audit.subject import (
    Subject,
    Transcript,
    plain_factors,
    random_selection,
    scratch_folder,
)
from dpfact_flower.client import RoundRefusedError
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.wire.protocol import RoundRequest

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

_SIZES = (0, 4096, 20_000, 100_000)
"""Bytes that a file may have on a full disk."""


@contextmanager
def _disk(size: int | None = None) -> Iterator[None]:
    """A disk that may fill up: afterwards there is room again."""
    limits = resource and resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if size is not None:
            _fill_up(size)
        yield
    finally:
        if resource:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _fill_up(size: int = 0) -> None:
    """From now on no file of this process may grow beyond so many bytes: the system's own error."""
    if resource:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        )


def _run_out_of_memory() -> None:
    raise MemoryError


class _Watched:
    """A site's data that knows whether it was read, and may make trouble once it was."""

    def __init__(self, data: SiteData) -> None:
        self.name, self.vocabularies, self._data = data.name, data.vocabularies, data
        self.trouble: Callable[[], None] | None = None
        self.was_read = False

    def read(self) -> SiteData:
        self.was_read = True
        if self.trouble:
            self.trouble()
        return self._data


class _Said(NamedTuple):
    """What a site said to a request, beside its values."""

    code: str
    """Of a refusal; empty for an answer."""
    beside: tuple[Any, ...]
    read: bool
    left: bool
    """Whether a refusal left anything on the disk."""


class _Site:
    """A site that is asked."""

    def __init__(self, subject: Subject, data: SiteData, folder: Path) -> None:
        self.source = _Watched(data)
        self._subject, self._folder = subject, folder / data.name
        self._client = subject.client(folder, self.source)

    def ask(self, request: RoundRequest, trouble: Callable[[], None] | None = None) -> _Said:
        self.source.was_read, self.source.trouble = False, trouble
        before = self._names()
        code, beside = "", tuple[Any, ...]()
        try:
            sent, examples, config = self._client.fit(*request.to_wire())
            arrays = self._subject.read(request.round, sent, config)
            shapes = tuple((array.shape, str(array.dtype)) for array in arrays)
            beside = (examples, tuple(sorted(config.items())), shapes)
        except RoundRefusedError as refusal:
            code = str(refusal).split(" ")[0]
        except Exception as error:  # it would reach the server as it is
            code = type(error).__name__
        left = bool(code) and not self.source.was_read and self._names() != before
        return _Said(code, beside, self.source.was_read, left)

    def _names(self) -> set[str]:
        """Files and folders of the site, but for those of its own that are always the same."""
        found = self._folder.rglob("*")
        return {str(path) for path in found if not path.name.startswith((".", LEDGER))}

    def rows(self) -> int:
        """How many releases its ledger holds."""
        if not (self._folder / LEDGER).exists():
            return 0
        with Ledger(self._folder, create=False) as ledger:
            return ledger.head().rows


class _Pair:
    """The two sites, and what was wrong with what they said."""

    def __init__(self, *sites: _Site) -> None:
        self._sites = sites
        self.different = self.wrong = self.free = self.left = 0

    def ask(
        self,
        request: RoundRequest,
        *,
        disk: int | None = None,
        trouble: Callable[[], None] | None = None,
        may_read: bool = True,
    ) -> int:
        """Ask both; how many releases the first was charged by now."""
        said, rows = [], []
        for site in self._sites:
            with _disk(disk):
                said.append(site.ask(request, trouble))
            rows.append(site.rows())
        self.different += said[1:] != said[:-1] or rows[1:] != rows[:-1]
        # Once the patients were read there is an answer, or one code.
        self.wrong += any(one.read and one.code not in ("", "dpfact:failed") for one in said)
        self.free += any(one.read and not may_read for one in said)
        self.left += any(one.left for one in said)
        return rows[0]


def audit_replies(
    subject: Subject, rng: np.random.Generator, *, tell: Tell = silent
) -> tuple[Finding, ...]:
    """Let everything fail that can, on two sites that one patient tells apart.

    Parameters
    ----------
    subject : Subject
    rng : numpy.random.Generator
        Chooses transcript and canary.
    tell : callable

    Returns
    -------
    tuple of Finding
        Counts of replies that differ, of failures that say why, of charges for what failed, of
        requests that cost nothing and read the patients, or left something on the disk.
    """
    transcript = subject.transcript(
        plain_factors(subject.sizes, subject.solver.rank, rng), random_selection(subject, rng)
    )
    canary = CANARIES["dense"](subject.site, transcript, rng)
    neighbour = joined(subject.site, [canary])
    charged = 0
    with scratch_folder() as folder:
        sites = ((subject.site, "site"), (neighbour, "other"))
        pair = _Pair(*(_Site(subject, data, folder / name) for data, name in sites))
        for number in range(1, subject.plan.rounds + 1):
            charged += _fail(pair, subject, transcript, number)
            tell(number / subject.plan.rounds)
        _ask_for_nothing(pair, subject, transcript)
    return (
        count_of(
            "replies: neighbours",
            pair.different,
            "requests to which a site with one patient more said something else, or charged more",
        ),
        count_of(
            "replies: failures",
            pair.wrong,
            "failures after the patients were read that say more than that there was one",
        ),
        count_of("replies: charges", charged, "failed rounds that were charged, or charged twice"),
        count_of("replies: free", pair.free, "requests that cost nothing and read the patients"),
        count_of("replies: left", pair.left, "refusals that left something on the disk"),
    )


def _fail(pair: _Pair, subject: Subject, transcript: Transcript, number: int) -> int:
    """Let a round go wrong in every way, then right, then again; how often it was charged amiss."""
    request = transcript.request(number)
    charged = subject.plan.release_of(number) is not None
    before = pair.ask(replace(request, vocabulary="x"), may_read=False)
    rows = [pair.ask(request, disk=size, may_read=charged) for size in _SIZES]
    if charged:
        rows += [pair.ask(request, trouble=made) for made in (_fill_up, _run_out_of_memory)]
    wrong = sum(after != before for after in rows)
    rows = [pair.ask(request, may_read=charged), pair.ask(request, may_read=False)]
    return wrong + sum(after != before + charged for after in rows)


def _ask_for_nothing(pair: _Pair, subject: Subject, transcript: Transcript) -> None:
    """Ask for what was answered, for what is over, and for what is refused."""
    for number in range(1, subject.plan.rounds + 1):
        request = transcript.request(number)
        for asked in (
            request,
            replace(request, anchors=tuple(anchor * np.float32(0.5) for anchor in request.anchors)),
            replace(request, selection=tuple(kept[:-1] for kept in request.selection)),
            replace(request, seed=1),
            replace(request, rounds=request.rounds + 1),
        ):
            pair.ask(asked, may_read=False)
        new = transcript.request(number, f"new-{number}")
        for size in _SIZES:
            pair.ask(new, disk=size, may_read=False)
    pair.ask(transcript.request(subject.plan.rounds, "unpaid"), may_read=False)
