"""Tables of phenotypes: what ``phenotypes.json`` holds, as typed values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CodeWeight:
    """A code and its share in a phenotype.

    Attributes
    ----------
    code, description : str
    weight : float
        The code's share in its mode.
    observed : float, str or None
        Share of the phenotype's patients who have the code: ``<10`` for fewer than ten of them,
        ``all`` where fewer than ten lack it. None where patients were not counted.
    everybody : float, str or None
        Share of all patients who have the code, in the same way; ``hidden`` where fewer than ten
        of them lack a phenotype, or fewer than ten have neither.
    """

    code: str
    description: str
    weight: float
    observed: float | str | None = None
    everybody: float | str | None = None


@dataclass(frozen=True)
class Association:
    """How a phenotype goes with an outcome, all other phenotypes held equal.

    Attributes
    ----------
    coefficient : float or None
        Log odds per standard deviation of the membership.
    p_value : float or None
        Two-sided Wald test, not corrected for the number of phenotypes; by statsmodels.
    reason : str or None
        Why one of them is missing.
    interval : tuple of two floats, or None
        95 % confidence interval of the coefficient, by the same test; None without a p-value.
    rate : float, str or None
        Share with the outcome among the patients who have the phenotype: ``<10`` where fewer than
        ten of them have it, ``hidden`` where the rate would reveal another count below ten. None
        where nobody has the phenotype.
    rate_interval : tuple of two floats, or None
        95 % confidence interval of `rate` (Wilson), where `rate` is a number.
    """

    coefficient: float | None = None
    p_value: float | None = None
    reason: str | None = None
    interval: tuple[float, float] | None = None
    rate: float | str | None = None
    rate_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Phenotype:
    """One component.

    Attributes
    ----------
    number : int
        From 1, as the paper counts.
    weight : float
        lambda_r, the product of the column norms of all factors.
    prevalence : float or str
        Share of the patients who have it; ``<10`` for fewer than ten patients.
    codes : dict of str to tuple of CodeWeight
        Largest weights first, by name of the mode.
    outcomes : dict of str to Association
        By name of the label.
    by_site : dict of str to float or str
        Prevalence among the patients of each site, as `prevalence`; ``hidden`` where it would
        reveal, with the prevalence of all, a number below ten elsewhere.
    precision : float, str or None
        Share of its patients who carry a leading code of every mode
        (`dpfact_flower.evaluation.membership.leading_codes`), guarded as `CodeWeight.observed`.
    carriers : float or str
        Share of all patients who carry a leading code of every mode; ``hidden`` where fewer than
        ten of them lack the phenotype.
    """

    number: int
    weight: float
    prevalence: float | str
    codes: dict[str, tuple[CodeWeight, ...]]
    outcomes: dict[str, Association]
    by_site: dict[str, float | str] = field(default_factory=dict)
    precision: float | str | None = None
    carriers: float | str | None = None


@dataclass(frozen=True)
class PhenotypeTable:
    """All phenotypes of one group of patients.

    Attributes
    ----------
    patients : int
    phenotypes : tuple of Phenotype
    rates : dict of str to float, str or None
        Share of all patients with an outcome, by name of the label, as `Association.rate`.
    without : float, str or None
        Share of the patients who have no phenotype.
    """

    patients: int
    phenotypes: tuple[Phenotype, ...]
    rates: dict[str, float | str | None] = field(default_factory=dict)
    without: float | str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class SiteUsage:
    """Which site uses which phenotype, and how much.

    Attributes
    ----------
    sites : tuple of str
    norms : tuple of tuple of float
        Column norms of the patients' factors, T x R. They grow with a site's number of patients.
    off : tuple of tuple of bool
        Where the column is exactly zero: the l2,1 penalty has switched the phenotype off.
    """

    sites: tuple[str, ...]
    norms: tuple[tuple[float, ...], ...]
    off: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class SharedPhenotypes:
    """Content of a simulation's ``phenotypes.json``: all patients' table, and all sites' usage."""

    table: PhenotypeTable
    usage: SiteUsage


@dataclass(frozen=True)
class GlobalCodes:
    """Content of a deployment's ``phenotypes.json``: codes alone, without a patient.

    Attributes
    ----------
    codes : dict of str to tuple of tuple of CodeWeight
        By name of the mode: of each component, largest weights first.
    """

    codes: dict[str, tuple[tuple[CodeWeight, ...], ...]]
