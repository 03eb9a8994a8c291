"""Define the contents of ``phenotypes.json`` and ``beside.json``.

If a share would reveal a count below ten, a text replaces the share. ``<10`` means fewer than ten
patients, perhaps none. ``nearly all`` means all patients except at most nine. In a group of fewer
than 100 patients, the text is ``most`` instead. ``hidden`` means that the share would reveal a
count below ten.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

SMALL = 10
"""Smallest patient count that is shown."""
Share = float | str | None


@dataclass(frozen=True)
class CodeWeight:
    """A code in a phenotype. `weight` is the code's share of the total weight in its mode.

    `observed` is the code's frequency among the phenotype's patients. `everybody` is the code's
    frequency among all patients.
    """

    code: str
    description: str
    weight: float
    observed: Share = None
    everybody: Share = None


@dataclass(frozen=True)
class Association:
    """The association of a phenotype with an outcome, adjusted for the other phenotypes.

    `coefficient` is the log odds ratio per standard deviation of the score, with a 95 % `interval`.
    `p_value` is from a two-sided Wald test, and is not corrected for the number of phenotypes.
    `reason` says why a coefficient is missing. `rate` is the share of the phenotype's patients who
    have the outcome, and `rate_interval` is its Wilson 95 % interval.
    """

    coefficient: float | None = None
    p_value: float | None = None
    reason: str | None = None
    interval: tuple[float, float] | None = None
    rate: Share = None
    rate_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Phenotype:
    """One component of the model. `number` starts at 1.

    `weight` is the product of the norms of the phenotype's columns in all factors. `prevalence` is
    the share of patients who have the phenotype. `carriers` is the share of all patients who have a
    leading code in every mode. `precision` is the share of the phenotype's patients who have a
    leading code in every mode. `codes` lists each mode's codes, largest weight first.
    """

    number: int
    weight: float
    prevalence: float | str
    codes: dict[str, tuple[CodeWeight, ...]]
    outcomes: dict[str, Association]
    by_site: dict[str, float | str] = field(default_factory=dict)
    precision: Share = None
    carriers: Share = None


@dataclass(frozen=True)
class PhenotypeTable:
    """All phenotypes, each outcome's rate, and the share of patients who have no phenotype."""

    patients: int
    phenotypes: tuple[Phenotype, ...]
    rates: dict[str, Share] = field(default_factory=dict)
    without: Share = None


@dataclass(frozen=True)
class SiteUsage:
    """Column norms of the sites' patient factors, which show how strongly phenotypes are present.

    Sites with more patients have larger `norms`. `off` marks the columns that contain only zeros.
    """

    sites: tuple[str, ...]
    norms: tuple[tuple[float, ...], ...]
    off: tuple[tuple[bool, ...], ...]

    @property
    def switched_off(self) -> dict[str, list[int]]:
        """For each site, the numbers of the phenotypes whose patient-factor columns are zero."""
        return {
            site: [number for number, is_off in enumerate(row, start=1) if is_off]
            for site, row in zip(self.sites, self.off, strict=True)
        }


@dataclass(frozen=True)
class SharedPhenotypes:
    """The content of ``phenotypes.json``: a table for all patients, and usage at each site."""

    table: PhenotypeTable | None
    usage: SiteUsage | None


@dataclass(frozen=True)
class Pair:
    """A run's phenotype, the matched phenotype of another run, and their similarity.

    `match` is the product of the cosine similarities in all modes. `fair` is the `match` that
    results from a cosine similarity of 0.85 in every mode. `chance` is the 95th percentile of the
    `match` with artificial phenotypes, whose modes come from different phenotypes of the other run.
    """

    number: int
    other: int
    match: float
    fair: float
    chance: float

    @property
    def is_replicated(self) -> bool:
        """Whether the other run also found the phenotype."""
        return self.match > max(self.fair, self.chance)

    @property
    def is_by_chance(self) -> bool:
        """Whether `match` may be due to frequent codes only: it exceeds `fair` but not `chance`."""
        return self.fair < self.match <= self.chance


@dataclass(frozen=True)
class Replication:
    """Matches between a run's phenotypes and those of another run, whose folder is called `name`.

    `how` is the other run's epsilon and claim, or ``without noise``. `rank` is the number of
    phenotypes of the first run.
    """

    name: str
    how: str
    rank: int
    pairs: tuple[Pair, ...]

    @property
    def count(self) -> int:
        """Number of replicated phenotypes."""
        return sum(pair.is_replicated for pair in self.pairs)

    def partner(self, number: int) -> Pair | None:
        """Return the pair with the first run's phenotype `number`, or None if none exists."""
        return next((pair for pair in self.pairs if pair.number == number), None)


def pairs_of(number: int, replications: Sequence[Replication]) -> list[Pair]:
    """Return the phenotype's pair in each replication. A missing pair has a `match` of 0."""
    return [run.partner(number) or Pair(number, 0, 0.0, 1.0, 1.0) for run in replications]
