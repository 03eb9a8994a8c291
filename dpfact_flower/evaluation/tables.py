"""Tables of phenotypes: the contents of ``phenotypes.json`` and ``beside.json``.

A share of patients is a number, None if patients were not counted, or a word if the number would
reveal a count below ten: ``<10`` for fewer than ten patients, ``all`` if fewer than ten are left
over, and ``hidden`` if other numbers would complete it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Share = float | str | None


@dataclass(frozen=True)
class CodeWeight:
    """A code in a phenotype. `weight` is the code's share of the total weight in its mode.

    `observed` is the code's share of the phenotype's patients, `everybody` of all patients.
    """

    code: str
    description: str
    weight: float
    observed: Share = None
    everybody: Share = None


@dataclass(frozen=True)
class Association:
    """The association of a phenotype with an outcome, all other phenotypes held equal.

    The `coefficient` is in log odds per standard deviation of the membership, with a two-sided Wald
    test, not corrected for the number of phenotypes, and a 95 % `interval`. `reason` explains a
    missing coefficient. `rate` is the outcome's share of the phenotype's patients, with Wilson's
    95 % interval.
    """

    coefficient: float | None = None
    p_value: float | None = None
    reason: str | None = None
    interval: tuple[float, float] | None = None
    rate: Share = None
    rate_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Phenotype:
    """One component. Its number counts from 1, as in the paper.

    `weight` is lambda_r, the product of the column norms of all factors. `prevalence` is the share
    of patients who have the phenotype. `carriers` is the share of all patients who carry a leading
    code of every mode, and `precision` the same share of the phenotype's patients. `codes` are by
    mode, the largest weights first, and `outcomes` by label.
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
    """Phenotypes of some patients, the outcomes' `rates`, and the share `without` phenotypes."""

    patients: int
    phenotypes: tuple[Phenotype, ...]
    rates: dict[str, Share] = field(default_factory=dict)
    without: Share = None


@dataclass(frozen=True)
class SiteUsage:
    """The usage of each phenotype at each site: column norms of the patients' factors, (T, R).

    Norms grow with a site's number of patients. The l2,1 penalty has made `off` columns zero.
    """

    sites: tuple[str, ...]
    norms: tuple[tuple[float, ...], ...]
    off: tuple[tuple[bool, ...], ...]

    @property
    def switched_off(self) -> dict[str, list[int]]:
        """Numbers of the phenotypes that each site has switched off."""
        return {
            site: [number for number, is_off in enumerate(row, start=1) if is_off]
            for site, row in zip(self.sites, self.off, strict=True)
        }


@dataclass(frozen=True)
class SharedPhenotypes:
    """The content of ``phenotypes.json``: the table of all patients and, if measured, all usage."""

    table: PhenotypeTable | None
    usage: SiteUsage | None


# --- beside.json ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A phenotype and its partner in another run: numbers from 1, and their likeness.

    `match` is the product over the modes of the cosines between the two, `fair` the product of
    cosines of .85, and `chance` the 95th percentile of matches when the modes of the other run's
    phenotypes are recombined at random. Frequent codes alone can produce a match up to `chance`.
    """

    number: int
    other: int
    match: float
    fair: float
    chance: float

    @property
    def is_replicated(self) -> bool:
        """Whether the other run has the phenotype too."""
        return self.match > max(self.fair, self.chance)

    @property
    def is_by_chance(self) -> bool:
        """Whether codes that are in many phenotypes could explain the match."""
        return self.fair < self.match <= self.chance


@dataclass(frozen=True)
class Replication:
    """The matches of a run's phenotypes in another run, whose folder is `name`.

    `how` describes the `protection` of the other run's patients. `rank` is that of the first run.
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
        """Return a phenotype's pair, or None if the phenotype has no partner."""
        return next((pair for pair in self.pairs if pair.number == number), None)


STABLE, PARTLY, UNCONFIRMED, NOT_FOUND = "stable", "partly", "unconfirmed", "not found"
LIKELY, UNCERTAIN, DOUBTFUL = "likely real", "uncertain", "doubtful"
MOST_FALSE, _EVEN = 0.1, 0.5
"""A phenotype is likely real if the chance that other patients lack it is at most `MOST_FALSE`, and
uncertain if this chance is at most `_EVEN`."""


def certainty(pairs: Sequence[Pair], chance: float | None = None) -> str:
    """Return one word for a phenotype's certainty, from its pair in each other run.

    Without pairs, the word follows from the `chance` that other patients lack the phenotype.
    """
    if not pairs:
        if chance is None:
            return ""
        return LIKELY if chance <= MOST_FALSE else UNCERTAIN if chance <= _EVEN else DOUBTFUL
    count = sum(pair.is_replicated for pair in pairs)
    if count:
        return STABLE if count == len(pairs) else PARTLY
    return UNCONFIRMED if any(pair.is_by_chance for pair in pairs) else NOT_FOUND
