"""Plan a run's releases in patient mode, and the noise in each release.

The server and the sites compute the same plan from public settings, without patients' data. The
constants below come from experiments (docs/explanation/start.md).

The budget is planned in Gaussian DP. `total_rho` reduces epsilon and delta by `DISCRETE_SLACK`, and
finds the largest Gaussian-DP parameter mu for the reduced values. The zCDP cost for parameter mu is
``mu**2 / 2``. If the proof for discrete noise does not apply (epsilon above 500), or rounding hides
that the proof applies (some epsilons below 0.001), `total_rho` uses zCDP. For a planned run,
`account` returns at most the epsilon in the settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpfact_flower.errors import SettingsError, shown
from dpfact_flower.privacy.conversions import (
    DISCRETE_SLACK,
    MOST_DISCRETE_VALUES,
    ROUNDING,
    epsilon_gaussian_discrete,
    epsilon_zcdp_tight,
    mu_for_epsilon,
    rho_for_epsilon,
    root_of,
    sigma_of,
)
from dpfact_flower.privacy.guarantee import Guarantee, account
from dpfact_flower.privacy.patient.releases import KINDS, PlannedRelease
from dpfact_flower.privacy.patient.sharing import sharing_of
from dpfact_flower.privacy.patient.statistics import MOST_REFINED
from dpfact_flower.privacy.patient.strength import GOOD_STRENGTH, Facts
from dpfact_flower.privacy.release import at_least_one, positive
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor.triangle import strict_size

_START_SHARE = 0.7
"""The start's share of the budget that remains after the code counts."""
_ROUND = 4.0
"""Signal (see `Facts.signal`) required for each planned refinement round."""
_MOST_ROUNDS, _QUICK_RANK = 40, 20
"""Maximum planned number of refinement rounds, and the rank above which this number decreases as
``1 / rank``, because each round takes longer."""
_BOUND, _WIDEST = 0.1, 1.0
"""Lowest and highest planned bound on patients' contributions to a refinement. Clipping gives less
weight to patients whose data the model explains well. A bound of 1 clips few contributions."""
_WIDER = 0.1
"""Ratio of the planned bound to signal * rank / codes. More codes mean smaller contributions."""
_CLEAR = 1000.0
"""Refinements are averaged over rounds if `Facts.signal` is below this value."""
_MEMORY = 0.5
"""Weight of the earlier average when refinements are averaged over rounds."""
_MOST_NOISE = 1e4
"""Largest allowed ratio of sigma to sensitivity, which limits the number of releases. Even a nearly
free release makes the site read patients' data, and the server sees how long the site takes."""
BYTES_A_VALUE = 48
"""Bytes of memory per released value, for one thread's sum, noise and packing (37 measured)."""
MOST_VALUES = 2 * 10**8
"""Largest number of values in one release. SQLite allows a billion bytes in one ledger field."""


@dataclass(frozen=True)
class PatientPlan:
    """A run's releases, one in each Flower round except the last.

    `settings` contains the privacy settings with all planned values, as sent to the sites. The
    server averages refinements over rounds, with weight `memory` for the earlier average.
    """

    releases: tuple[PlannedRelease, ...]
    rounds: int
    settings: PrivacySettings
    memory: float
    facts: Facts

    @property
    def start(self) -> PlannedRelease:
        """The release from which the server computes the run's first phenotypes."""
        return next(release for release in self.releases if release.kind == "start")

    def release_of(self, round_number: int) -> PlannedRelease | None:
        """Return the release of a round, or None for a round without a release."""
        return next((r for r in self.releases if r.round == round_number), None)

    def guarantee(self) -> Guarantee:
        """Return the privacy guarantee that the whole run gives to the patients of every site."""
        modes = [f"mode {mode}" for mode, _ in enumerate(self.facts.sizes, start=1)]
        events = [release.event(modes, seeded=False) for release in self.releases]
        return account(events, self.settings.delta)


def plan_patient(
    settings: PrivacySettings, *, sizes: Sequence[int], rank: int, sites: int = 0
) -> PatientPlan:
    """Plan a patient-mode run. `sizes` holds the number of codes per mode. `sites` is 0 if unknown.

    The values ``start_share = 0``, ``refine_rounds = -1`` and ``bound = 0`` are replaced with
    planned values, which can depend on `sites` and ``settings.patients``. The server sends the
    planned values to the sites, so that each site computes the same plan.
    """
    every = tuple(at_least_one("sizes", size) for size in sizes)
    kept = settings.codes_kept or every
    _check_sizes(settings, every, kept, at_least_one("rank", rank))
    sharing = sharing_of(settings, sites)
    facts = Facts(kept, rank, sites, settings.patients, sharing)

    total = total_rho(settings.epsilon, settings.delta)
    split = _split(settings, facts, total)
    is_weak = facts.known and facts.start_signal(split.start) * math.sqrt(rank) < GOOD_STRENGTH
    if sharing and not settings.secure_slots and is_weak:  # too weak for more than one slot
        sharing = sharing._replace(slots=1)
        facts = facts._replace(sharing=sharing)
        split = _split(settings, facts, total)
    bound = settings.bound or _planned_bound(facts, total - split.codes)
    memory = _MEMORY if facts.signal(total - split.codes) < _CLEAR else 0.0
    releases: list[PlannedRelease] = []
    for number, (kind, mode, rho) in enumerate(split.schedule(len(kept)), start=1):
        sensitivity = bound if KINDS[kind].clipped else 1.0
        count, sigma = KINDS[kind].size(every, kept, mode, rank), sigma_of(rho, sensitivity)
        releases.append(PlannedRelease(kind, number, mode, sensitivity, sigma, count, rho, sharing))
    shared = sharing._asdict() if sharing else {}
    settings = replace(
        settings, start_share=split.share, refine_rounds=split.rounds, bound=bound,
        **{f"secure_{name}": number for name, number in shared.items()},
    )  # fmt: skip
    _check_releases(settings, releases)
    return PatientPlan(tuple(releases), len(releases) + 1, settings, memory, facts)


def _check_sizes(
    settings: PrivacySettings, every: Sequence[int], kept: Sequence[int], rank: int
) -> None:
    """Refuse a plan that keeps too many or too few codes, or that makes a release too large."""
    sizes = "x".join(map(str, every))
    if len(kept) != len(every) or any(k > n for k, n in zip(kept, every, strict=True)):
        raise SettingsError(f"codes: need one per mode, up to {sizes}; got {shown(settings.codes)}")
    if sum(kept) < 2:
        raise SettingsError("sizes: need at least 2 codes in all for a co-occurrence")
    start, refinement = strict_size(sum(kept)), rank * max(kept) + rank * rank
    for what, count, most, advice in (
        (f"sizes: {sizes}", start, MOST_VALUES, "fewer codes, or set codes"),
        (f"rank: {rank}", refinement, MOST_REFINED, "fewer phenotypes"),
    ):
        if count > most:
            raise SettingsError(
                f"{what} makes a release of {count:,} values, but the limit is {most:,}; choose "
                f"{advice}"
            )


def _check_releases(settings: PrivacySettings, releases: Sequence[PlannedRelease]) -> None:
    """Refuse a plan with too much noise in one release, or with too many released values in all."""
    if any(release.sigma > _MOST_NOISE * release.sensitivity for release in releases):
        raise SettingsError(
            f"epsilon {settings.epsilon:g}: with these shares, a release would have noise of more "
            f"than {_MOST_NOISE:g} patients, and nothing could be learned from it"
        )
    count = sum(release.count for release in releases)
    if count > MOST_DISCRETE_VALUES:
        raise SettingsError(
            f"refine-rounds: {settings.refine_rounds} make releases of {count:,} values in all, "
            f"but the limit is {MOST_DISCRETE_VALUES:,}; choose fewer rounds, phenotypes or codes"
        )


def total_rho(epsilon: float, delta: float) -> float:
    """Return the largest total zCDP cost for which `account` returns at most `epsilon`."""
    if positive("epsilon", epsilon) <= 2 * DISCRETE_SLACK:
        raise SettingsError(f"epsilon: must exceed {2 * DISCRETE_SLACK:g}; got {epsilon!r}")
    mu = mu_for_epsilon(epsilon - DISCRETE_SLACK, delta * (1 - DISCRETE_SLACK))
    mu *= ROUNDING
    if epsilon_gaussian_discrete(mu, delta, 1) <= epsilon:
        return mu * mu / 2
    # `low` and `high` come from a looser and a tighter conversion than tight zCDP.
    low, high = rho_for_epsilon(epsilon, delta) * ROUNDING, mu_for_epsilon(epsilon, delta) ** 2
    return ROUNDING * root_of(lambda rho: epsilon_zcdp_tight(rho, delta) - epsilon, low, high)


class _Split(NamedTuple):
    """The zCDP costs of three kinds of releases: the code counts, the start and each refinement.

    `codes` may be 0. `share` is the start's share of the budget that remains after the code counts.
    Every mode is refined `rounds` times.
    """

    codes: float
    start: float
    refine: float
    share: float
    rounds: int

    def schedule(self, modes: int) -> list[tuple[str, int | None, float]]:
        """Return the kind, mode and cost of each release, in the order of the rounds."""
        codes: list[tuple[str, int | None, float]] = [("codes", None, self.codes)]
        refinements = [("refine", mode, self.refine) for mode in range(modes)] * self.rounds
        return (codes if self.codes else []) + [("start", None, self.start), *refinements]


def _split(settings: PrivacySettings, facts: Facts, total: float) -> _Split:
    """Divide a budget among the releases, and choose values for unset settings."""
    codes = settings.codes_share * total if settings.codes_kept else 0.0
    left = total - codes
    share, rounds = settings.start_share, settings.refine_rounds
    if share == 1 and rounds > 0:
        raise SettingsError(f"start-share: 1 leaves nothing for refine-rounds = {rounds}")
    if 0 < share < 1 and rounds == 0:
        raise SettingsError(
            f"refine-rounds: 0 leaves budget unspent; set start-share to 1 or 0, not {share:g}"
        )
    if rounds == 0 or share == 1:
        share, rounds = 1.0, 0
    else:
        share = share or _START_SHARE
        rounds = rounds if rounds > 0 else _planned_rounds(facts, left)
    start = share * left
    return _Split(codes, start, (left - start) / max(1, rounds * len(facts.sizes)), share, rounds)


def _planned_rounds(facts: Facts, rho: float) -> int:
    rounds = facts.signal(rho) / _ROUND * min(1.0, _QUICK_RANK / facts.rank)
    return max(1, min(_MOST_ROUNDS, math.floor(rounds)))


def _planned_bound(facts: Facts, rho: float) -> float:
    ratio = facts.signal(rho) * facts.rank / sum(facts.sizes)
    return min(_WIDEST, max(_BOUND, _WIDER * ratio))
