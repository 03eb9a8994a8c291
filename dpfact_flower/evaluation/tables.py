"""Tables of phenotypes: what ``phenotypes.json`` holds, as typed values.

A share of patients is a number, or a word where a number would reveal a count below ten: ``<10``
for fewer than ten patients, ``all`` where fewer than ten are left over, ``hidden`` where the number
and others together would reveal such a count. It is None where patients were not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Share = float | str | None


@dataclass(frozen=True)
class CodeWeight:
    """A code, and its share `weight` of its mode's weight in a phenotype.

    `observed` is the share of the phenotype's patients who have the code, `everybody` that of all
    patients.
    """

    code: str
    description: str
    weight: float
    observed: Share = None
    everybody: Share = None


@dataclass(frozen=True)
class Association:
    """How a phenotype goes with an outcome, all other phenotypes held equal.

    The `coefficient` is in log odds per standard deviation of the membership, with a two-sided Wald
    test, not corrected for the number of phenotypes, and its 95 % interval; or there is a `reason`
    why not. `rate` is the share with the outcome among the patients who have the phenotype, with
    Wilson's 95 % interval where it is a number.
    """

    coefficient: float | None = None
    p_value: float | None = None
    reason: str | None = None
    interval: tuple[float, float] | None = None
    rate: Share = None
    rate_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Phenotype:
    """One component, by its number from 1, as the paper counts.

    `weight` is lambda_r, the product of the column norms of all factors. `prevalence` is the share
    of the patients who have it, `by_site` that at each site, `precision` the share of these who
    carry a leading code of every mode (`dpfact_flower.evaluation.membership.leading_codes`), and
    `carriers` that of all patients. `codes` are by mode, the largest weights first, and `outcomes`
    by label.
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
    """All phenotypes of one group of patients.

    `rates` is by label the share of all patients with the outcome, and `without` the share of the
    patients who have no phenotype.
    """

    patients: int
    phenotypes: tuple[Phenotype, ...]
    rates: dict[str, Share] = field(default_factory=dict)
    without: Share = None


@dataclass(frozen=True)
class SiteUsage:
    """Which site uses which phenotype, and how much.

    `norms` are the column norms of the patients' factors, sites by phenotypes; they grow with a
    site's number of patients. A column is `off` where the l2,1 penalty has made it exactly zero.
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
    """Content of a simulation's ``phenotypes.json``: all patients' table, and all sites' usage."""

    table: PhenotypeTable
    usage: SiteUsage


@dataclass(frozen=True)
class GlobalCodes:
    """Content of a deployment's ``phenotypes.json``, without a patient: each component's codes.

    They are by name of the mode, largest weights first.
    """

    codes: dict[str, tuple[tuple[CodeWeight, ...], ...]]
