"""Test that noise has the planned standard deviation, is Gaussian, and never repeats.

The audit computes the noise by subtracting the exact sum from the release. The audit tests several
clipping bounds, because code that wrongly squares the bound would pass the test at bound 1. To
detect a restarted random number generator, the audit correlates noise within a release, and between
rounds, jobs and sites. The audit also repeats a round after the site has lost its state.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import signal, stats

from dpfact_flower.audit.finding import ALPHA, Finding, count_of
from dpfact_flower.audit.target import AuditTarget, SimulatedSite, noise_of, random_selection
from dpfact_flower.privacy.patient.releases import KINDS, PlannedRelease
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.tensor import Floats

_BOUNDS = (0.1, 1.0)
_STREAMS = ("site", "asked again", "other site")
_LEAST_OVERLAP = 1000
"""Minimum number of value pairs for which a correlation is tested."""
_LEAST_COMPARED = 5
"""Minimum number of values in a release that is compared: fewer values may be equal by chance."""
_MOST_VALUES = 20_000
"""Maximum number of values per release in a correlation, enough to find any reused noise."""


@dataclass(frozen=True)
class _Sample:
    """A release's standardised noise, with one (jobs, values) array for each simulated site."""

    planned: PlannedRelease
    streams: dict[str, Floats]

    def values(self) -> Floats:
        """Return all values in one vector."""
        return np.concatenate([stream.ravel() for stream in self.streams.values()])


def audit_noise(
    target: AuditTarget, rng: np.random.Generator, *, values: int = 40_000, seeded: bool = False
) -> tuple[Finding, ...]:
    """Test the noise of every planned release, with at least `values` samples of noise for each.

    `seeded` is true if the settings contain a noise seed, which counts as a fault.
    """
    scales: list[Finding] = []
    own: list[_Sample] = []
    bounds = [target.privacy.bound, *(b for b in _BOUNDS if b != target.privacy.bound)]
    for number, bound in enumerate(bounds):
        asked = AuditTarget.of(target.site, target.solver, replace(target.privacy, bound=bound))
        releases = [r for r in asked.plan.releases if number == 0 or KINDS[r.kind].clipped]
        samples = [_sample(asked, planned, values, rng) for planned in releases]
        scales += [_scale(asked, sample, f"bound {bound:g}") for sample in samples]
        own = own or samples
    return (*scales, _mean(own), _shape(own), *_correlations(own), _source(own, seeded=seeded))


def _sample(
    target: AuditTarget, planned: PlannedRelease, values: int, rng: np.random.Generator
) -> _Sample:
    """Collect at least `values` samples of noise, from one round in each of several jobs."""
    factors = initial_factors(target.sizes, target.solver.rank, seed=planned.round)
    transcript = target.transcript(factors, random_selection(target, rng))
    jobs = max(2, math.ceil(values / planned.count / len(_STREAMS)))
    streams: dict[str, list[Floats]] = {stream: [] for stream in _STREAMS}
    for job in range(jobs):
        for stream in _STREAMS:
            name = f"{target.site.name[:50]}-other" if stream == "other site" else ""
            world = SimulatedSite(transcript, target.site, job=f"audit-{job}", name=name)
            total, release = world.play(planned)
            streams[stream].append(noise_of(planned, total, release.arrays[0]))
    return _Sample(planned, {name: np.array(rows) for name, rows in streams.items()})


def _scale(target: AuditTarget, sample: _Sample, where: str) -> Finding:
    """Test the noise's standard deviation with a two-sided chi-square test."""
    values = sample.values()
    n = len(values)
    low, high = (math.sqrt(stats.chi2.ppf(p, n) / n) for p in (ALPHA / 2, 1 - ALPHA / 2))
    return Finding(
        f"noise scale: {target.name(sample.planned)}, {where}",
        float(np.sqrt(np.mean(values**2))),
        (low, high),
        f"standard deviation divided by the planned {sample.planned.sigma:.4g}, {n:,} values",
    )


def _mean(samples: Sequence[_Sample]) -> Finding:
    z = [float(np.sum(v)) / math.sqrt(len(v)) for v in (s.values() for s in samples)]
    limit = _limit(len(z))
    return Finding(
        "noise mean", max(z, key=abs), (-limit, limit), "largest distance from 0, standard errors"
    )


def _shape(samples: Sequence[_Sample]) -> Finding:
    noises = [sample.values() for sample in samples]
    distances = [float(stats.kstest(n, "norm").statistic) * math.sqrt(len(n)) for n in noises]
    high = float(stats.kstwobign.isf(ALPHA / len(samples)))
    return Finding(
        "noise shape", max(distances), (0.0, high), "Kolmogorov-Smirnov distance from a Gaussian"
    )


def _source(samples: Sequence[_Sample], *, seeded: bool) -> Finding:
    """Count releases that repeat earlier noise. Add 1 if the settings contain a noise seed."""
    # Whole releases are compared, because a few values may coincide by chance.
    streams = [stream for sample in samples for stream in sample.streams.values()]
    noises = [row.tobytes() for stream in streams for row in stream if len(row) >= _LEAST_COMPARED]
    twice = len(noises) - len(set(noises))
    detail = "releases whose noise occurred before"
    if seeded:
        detail = "noise-seed is set: who knows it can remove the noise; real sites refuse the seed"
    return count_of("noise source", twice + seeded, detail)


def _correlations(samples: Sequence[_Sample]) -> tuple[Finding, ...]:
    cut = []
    for sample in samples:
        streams = (sample.streams[name][:, :_MOST_VALUES] for name in _STREAMS)
        cut.append([rows / max(float(np.sqrt(np.mean(rows**2))), 1e-300) for rows in streams])
    firsts = [first for first, _, _ in cut]
    return (
        _correlation("between rounds", combinations(firsts, 2)),
        _correlation("between jobs", [(first[:-1], first[1:]) for first in firsts]),
        _correlation("between sites", [(first, other) for first, _, other in cut]),
        _correlation("asked again", [(first, again) for first, again, _ in cut]),
        _correlation("within a release", [(first, first) for first in firsts]),
    )


def _correlation(kind: str, pairs: Iterable[tuple[Floats, Floats]]) -> Finding:
    """Correlate paired rows at every lag, and return the largest absolute Fisher z."""
    most, tests, reach = 0.0, 1, 0
    for one, two in pairs:
        jobs = min(len(one), len(two))
        products, overlaps = _lagged(one[:jobs], two[:jobs])
        if one is two:
            overlaps[one.shape[1] - 1] = 0  # lag 0 compares a value with itself
        looked = overlaps * jobs >= _LEAST_OVERLAP
        if not looked.any():
            continue
        count = overlaps[looked] * jobs
        r = np.clip(products[looked] / count, -1 + 1e-12, 1 - 1e-12)
        z = np.abs(np.arctanh(r)) * np.sqrt(count - 3)
        most, tests, reach = max(most, float(z.max())), tests + len(z), max(reach, int(count.max()))
    return Finding(
        f"noise {kind}",
        most,
        (0.0, _limit(tests)),
        f"largest correlation in standard errors, over {tests:,} offsets, up to {reach:,} values",
    )


def _lagged(one: Floats, two: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """For every lag, sum the rows' cross-correlations, and count the overlapping values."""
    n, m = one.shape[1], two.shape[1]
    pairs = zip(one, two, strict=True)
    products = np.sum([signal.correlate(a, b, method="fft") for a, b in pairs], axis=0)
    lag = signal.correlation_lags(n, m)
    return products, np.minimum(n, m + lag) - np.maximum(0, lag)


def _limit(tests: int) -> float:
    """Return the Bonferroni limit for the largest of `tests` standard normal statistics."""
    return float(stats.norm.isf(ALPHA / 2 / tests))
