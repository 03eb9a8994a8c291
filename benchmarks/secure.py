"""Measure the cost of secure sums: a site's masked words, the server's sum, and the bytes sent."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.rows import Row, timed
from benchmarks.scale import Scale
from dpfact_flower.privacy.patient.sharing import sharing_of
from dpfact_flower.privacy.secure_sum import server, site
from dpfact_flower.privacy.secure_sum.keys import (
    Question,
    new_signing_key,
    public_text,
    read_public_key,
    read_signing_key,
)
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor import SparseTensor

_VALUES = 134_000
"""Number of values in a run's start statistic, for the two largest modes of the paper's data."""
_SITES = (6, 20, 50)
_WIDTH = 4


def measure(_: Mapping[str, SparseTensor], scale: Scale, __: Sequence[Row]) -> list[Row]:
    """Return rows for each number of sites. Only the server and one site run in full."""
    return [row for sites in _SITES for row in _rows(sites, scale)]


def _rows(sites: int, scale: Scale) -> list[Row]:
    names = tuple(f"site-{number:02d}" for number in range(sites))
    signing = {name: read_signing_key(new_signing_key()) for name in names}
    peers = {name: read_public_key(public_text(key)) for name, key in signing.items()}
    sharing = sharing_of(PrivacySettings(secure_sums=True), sites)
    assert sharing is not None
    terms = sharing.terms("bench", "settings", names)
    jobs = [site.join(terms, name, signing[name], peers) for name in names]
    question = Question(1, b"request", 1, _WIDTH, tuple(job.member for job in jobs))
    vector = np.arange(_VALUES if scale.whole else 1000, dtype=np.int64)

    def answered() -> site.Masked:
        allowed = site.check_question(jobs[0], None, question, peers)
        return site.masked(jobs[0], site.answer(allowed, lambda: vector))

    # Random words and seeds cost the server as much work as those of real sites.
    own = answered()
    answers = {
        name: replace(own, words=secrets.token_bytes(len(own.words))) for name in names[1:]
    } | {names[0]: own}
    openings = {name: site.Opening(secrets.token_bytes(32), {}) for name in names}
    label = f"secure sum of {sites} sites"
    sealed = sum(map(len, own.sealed.values()))
    note = f"{len(vector):,} values; {len(own.words):,} bytes of words, {sealed:,} of shares"
    return [
        Row.of(f"{label}: a site's answer", timed(answered, *scale.timing), "s", note=note),
        Row.of(
            f"{label}: the server's sum",
            timed(lambda: server.unmasked(terms, question, answers, openings), *scale.timing), "s",
        ),
    ]  # fmt: skip
