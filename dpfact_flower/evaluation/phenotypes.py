"""Phenotype tables: what a component means, how common it is, and how it goes with outcomes.

The paper's tables of phenotypes and its figure of column norms. Patients' values are aggregated
here and nowhere else on their way into a report; counts of fewer than ten patients are hidden
unless asked for, because reports leave the analyst's desk.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.counts import SMALL, PatientCounts, guarded, share
from dpfact_flower.evaluation.membership import has_phenotype
from dpfact_flower.evaluation.prediction import MOST_PREDICTED
from dpfact_flower.evaluation.tables import (
    Association,
    CodeWeight,
    Phenotype,
    PhenotypeTable,
    SiteUsage,
)
from dpfact_flower.tensor import Factors

_FEWEST = 5
"""Fewest patients on either side of a label, of all and of a phenotype's, for a coefficient."""
_LARGEST = 20.0
"""Log odds per standard deviation: anything beyond is separation, not an estimate."""


def phenotype_table(
    memberships: Sequence[NDArray[np.floating[Any]]],
    features: Factors,
    sites: Sequence[SiteData],
    *,
    top: int = 8,
    small_cells: bool = True,
) -> PhenotypeTable:
    """Describe every phenotype by the patients who have it.

    Parameters
    ----------
    memberships : sequence of (I_t, R) arrays
        Each site's `dpfact_flower.evaluation.membership.scores` on `features`.
    features : tuple of (I_n, R) arrays
        Code weights are shares of their columns' absolute sums.
    sites : sequence of SiteData
        In the order of `memberships`. A label that one of them lacks is left out.
    top : int
        Codes to list per mode; those of weight zero are omitted.
    small_cells : bool
        Whether to guard counts under ten: such a prevalence or rate is ``<10``, and the phenotype
        gets no coefficient.

    Raises
    ------
    DataError
        If memberships, features and sites do not fit each other, or `top` is below 1.
    """
    _check(memberships, features, sites, top)
    least = SMALL if small_cells else 0
    has = [has_phenotype(own) for own in memberships]
    counted = (PatientCounts.of(*pair, features) for pair in zip(sites, has, strict=True))
    counts = reduce(add, counted)
    everybody, who = np.concatenate(memberships), np.concatenate(has)
    names = [name for name in sites[0].labels if all(name in site.labels for site in sites)]
    labels = {
        name: np.concatenate([site.labels[name] for site in sites]).astype(float) for name in names
    }
    outcomes = {name: _associations(everybody, who, own, least) for name, own in labels.items()}
    codes = _codes(sites[0].vocabularies, features, counts, top, least)
    by_site = _by_site({s.name: own for s, own in zip(sites, has, strict=True)}, memberships, least)
    patients, norms = len(who), np.linalg.norm(everybody, axis=0)
    return PhenotypeTable(
        patients,
        tuple(
            Phenotype(
                number=r + 1,
                weight=float(norms[r]),
                prevalence=share(counts.has[r], patients, least),
                codes={mode: own[r] for mode, own in codes.items()},
                outcomes={name: found[r] for name, found in outcomes.items()},
                by_site=by_site[r],
                precision=guarded(counts.led[r], counts.has[r], least),
                carriers=_unless(
                    least <= counts.led[r] > counts.carriers[r] - least,
                    share(counts.carriers[r], patients, least),
                ),
            )
            for r in range(who.shape[1])
        ),
        {name: _rate(label, np.ones(patients, bool), least) for name, label in labels.items()},
        share(int((~who.any(axis=1)).sum()), patients, least),
    )


def _codes(
    vocabularies: Sequence[Vocabulary],
    features: Factors,
    counts: PatientCounts,
    top: int,
    least: int,
) -> dict[str, list[tuple[CodeWeight, ...]]]:
    """By mode, each phenotype's codes, with the share of its patients who have each."""
    found = {}
    pairs = zip(vocabularies, features, counts.codes, counts.everybody, strict=True)
    for vocabulary, factor, own, everybody in pairs:
        apart = everybody - own
        few = np.minimum(apart, (counts.patients - counts.has)[:, None] - apart) < least
        tells = (few & (own >= least)).any(axis=0)  # who has a code, and not a phenotype
        found[vocabulary.name] = [
            tuple(
                replace(
                    code,
                    observed=guarded(own[r, at], counts.has[r], least),
                    everybody=_unless(tells[at], guarded(everybody[at], counts.patients, least)),
                )
                for code in codes
                for at in [vocabulary.index[code.code]]
            )
            for r, codes in enumerate(top_codes(vocabulary, factor, top))
        ]
    return found


def _unless(tells: bool | np.bool_, shown: float | str | None) -> Any:
    """What is shown, unless a small number follows from it and another."""
    return "hidden" if tells and isinstance(shown, float) else shown


def _check(
    memberships: Sequence[NDArray[Any]], features: Factors, sites: Sequence[SiteData], top: int
) -> None:
    if not sites or len(memberships) != len(sites):
        raise DataError(f"memberships: need one matrix for each of {len(sites)} sites")
    sizes = tuple(map(len, features))
    for site, own in zip(sites, memberships, strict=True):
        if site.tensor.feature_shape != sizes:
            raise DataError(
                f"features: have {sizes} codes, site {site.name} {site.tensor.feature_shape}"
            )
        wanted = (site.tensor.n_patients, features[0].shape[1])
        if own.shape != wanted or not np.isfinite(own).all():
            raise DataError(
                f"memberships: site {site.name} needs {wanted} finite scores, got {own.shape}"
            )
    if type(top) is not int or top < 1:
        raise DataError(f"phenotypes: need a whole number of top codes, 1 or more; got {top}")


def _by_site(
    has: Mapping[str, NDArray[np.bool_]], memberships: Sequence[NDArray[Any]], least: int
) -> list[dict[str, float | str]]:
    """Prevalence at each site, for each phenotype.

    With the prevalence of all patients, small numbers could be worked out: one alone, or several
    that are all 0 or all 9. Then the smallest of the other sites' numbers are hidden too.
    """
    sizes = {site: len(own) for site, own in has.items()}
    counts = {site: own.sum(axis=0) for site, own in has.items()}
    used = {s: np.asarray(own.any(axis=0)) for s, own in zip(has, memberships, strict=True)}
    return [
        _shown_by_site(
            {site: int(counts[site][r]) if used[site][r] else None for site in has}, sizes, least
        )
        for r in range(memberships[0].shape[1])
    ]


def _shown_by_site(
    counts: Mapping[str, int | None], sites: Mapping[str, int], least: int
) -> dict[str, float | str]:
    """A phenotype's row; the count is None where no patient of the site has any of it."""
    shown = {
        site: 0.0 if count is None else share(count, sites[site], least)
        for site, count in counts.items()
    }
    own = {site: n for site, n in counts.items() if n is not None}
    small = [site for site, share in shown.items() if isinstance(share, str)]
    others = sorted(own.keys() - small, key=lambda site: (own[site], site))
    hidden: list[str] = []
    while small and sum(own.values()) >= least and _tells(own, small, hidden, others, sites, least):
        if not others:
            hidden += small
            break
        hidden.append(others.pop(0))
    return shown | dict.fromkeys(hidden, "hidden")


def _tells(
    own: Mapping[str, int], small: list[str], hidden: list[str], others: list[str],
    sizes: Mapping[str, int], least: int,
) -> bool:  # fmt: skip
    """Whether the other sites' numbers leave less than any small number to one of the small."""
    rest = sum(own[site] for site in (*small, *hidden))
    largest = own[others[0]] if others else rest  # of a hidden number
    most = (least - 1) * (len(small) - 1) + sum(min(largest, sizes[site]) for site in hidden)
    return rest < least * (1 + len(hidden)) or rest > most


def site_usage(patient_factors: Sequence[ArrayLike], sites: Sequence[str]) -> SiteUsage:
    """Column norms of every site's patient factor, the paper's figure of mu.

    Parameters
    ----------
    patient_factors : sequence of (I_t, R) arrays
        One per site.
    sites : sequence of str
        Their names.

    Raises
    ------
    DataError
        If the numbers of sites or the ranks differ, there is no site, or a value is not finite.
    """
    factors = [np.asarray(factor, np.float64) for factor in patient_factors]
    if not factors or len(factors) != len(sites) or any(f.ndim != 2 for f in factors):
        raise DataError(f"patient factors: need one matrix for each of {len(sites)} sites")
    if not all(np.isfinite(factor).all() for factor in factors):
        raise DataError("patient factors: values must be finite")
    if len({factor.shape[1] for factor in factors}) > 1:
        raise DataError("patient factors: ranks differ between sites")
    norms = [np.linalg.norm(factor, axis=0) for factor in factors]
    return SiteUsage(
        tuple(sites),
        tuple(tuple(row.tolist()) for row in norms),
        tuple(tuple(not column.any() for column in factor.T) for factor in factors),
    )


def top_codes(
    vocabulary: Vocabulary, factor: NDArray[np.floating[Any]], top: int = 5
) -> list[tuple[CodeWeight, ...]]:
    """Codes of the largest absolute weight, for each component."""
    if len(factor) != len(vocabulary):
        raise DataError(
            f"vocabulary {vocabulary.name}: has {len(vocabulary)} codes, the factor {len(factor)}"
        )
    sums = np.abs(factor).sum(axis=0)
    shares = factor / np.where(sums > 0, sums, 1.0)
    return [
        tuple(
            CodeWeight(vocabulary.codes[i], vocabulary.descriptions[i], float(column[i]))
            for i in np.argsort(-np.abs(column), kind="stable")[:top].tolist()
            if column[i] != 0
        )
        for column in shares.T
    ]


def _associations(
    memberships: NDArray[np.floating[Any]],
    has: NDArray[np.bool_],
    label: NDArray[np.float64],
    least: int,
) -> list[Association]:
    """How each phenotype goes with an outcome: how often, and with all others held equal."""
    found = []
    for r, association in enumerate(_coefficients(memberships, has, label, least)):
        rate, patients = _rate(label, has[:, r], least), int(has[:, r].sum())
        interval = None
        if isinstance(rate, float):
            low, high = binomtest(round(rate * patients), patients).proportion_ci(method="wilson")
            interval = float(low), float(high)
        found.append(replace(association, rate=rate, rate_interval=interval))
    return found


def _rate(label: NDArray[np.float64], has: NDArray[np.bool_], least: int) -> float | str | None:
    """Share with an outcome of those who have a phenotype, unless a count behind it is small.

    With the numbers of patients, which are known, it gives all four counts, of those without too.
    """
    events = [int(label[who].sum()) for who in (has, ~has)]
    counts = [int(has.sum()), int((~has).sum())]
    if not counts[0]:
        return None
    if events[0] < least:
        return f"<{SMALL}"
    others = [counts[0] - events[0], *([events[1], counts[1] - events[1]] if counts[1] else [])]
    return "hidden" if min(others) < least else events[0] / counts[0]


def _coefficients(
    memberships: NDArray[np.floating[Any]],
    has: NDArray[np.bool_],
    label: NDArray[np.float64],
    least: int,
) -> list[Association]:
    """One logistic regression on all memberships that allow one; of many patients, on some."""
    rank = memberships.shape[1]
    if len(label) > MOST_PREDICTED:
        some = np.random.default_rng(0).permutation(len(label))[:MOST_PREDICTED]
        memberships, has, label = memberships[some], has[some], label[some]
    if min(label.sum(), (1 - label).sum()) < _FEWEST:
        return [Association(reason=f"fewer than {_FEWEST} patients with or without it")] * rank
    reasons = [_obstacle(memberships[:, r], label[has[:, r]], least) for r in range(rank)]
    usable = [r for r in range(rank) if reasons[r] is None]
    found = [Association(reason=reason) for reason in reasons]
    if usable:
        design = memberships[:, usable].astype(np.float64)
        design = (design - design.mean(axis=0)) / design.std(axis=0)
        for r, association in zip(usable, _logistic(design, label), strict=True):
            found[r] = association
    return found


def _obstacle(
    column: NDArray[np.floating[Any]], label: NDArray[np.float64], least: int
) -> str | None:
    """Why a phenotype cannot have a coefficient; `label` is of the patients who have it.

    Of few patients with an outcome maximum likelihood makes odds of next to nothing, with intervals
    that hold everything.
    """
    fewest = max(least, _FEWEST)
    if np.ptp(column) == 0:
        return "the membership is the same for all patients"
    if len(label) < fewest:
        return f"fewer than {fewest} patients have it"
    if label.sum() < fewest:
        return f"fewer than {fewest} patients with both"
    if (1 - label).sum() < fewest:
        return f"fewer than {fewest} patients who have it are without the outcome"
    return None


def _logistic(design: NDArray[np.floating[Any]], label: NDArray[np.float64]) -> list[Association]:
    """Maximum likelihood estimates; by statsmodels, without which there are no p-values."""
    patients, columns = design.shape
    with_constant = np.column_stack([np.ones(patients), design])
    if np.linalg.matrix_rank(with_constant) <= columns:
        return [Association(reason="memberships are linearly dependent")] * columns
    try:
        estimates = _by_statsmodels(with_constant, label)
    except ImportError:
        reason = "p-values need statsmodels, which is not installed"
        coefficients = LogisticRegression(C=np.inf, max_iter=10_000, tol=1e-8).fit(design, label)
        estimates = [Association(float(value), None, reason) for value in coefficients.coef_[0]]
    found = [np.nan if e.coefficient is None else e.coefficient for e in estimates or ()]
    if estimates is None or not (np.abs(found) < _LARGEST).all():
        return [Association(reason="separation: the likelihood has no maximum")] * columns
    return estimates


def _by_statsmodels(
    design: NDArray[np.float64], label: NDArray[np.float64]
) -> list[Association] | None:
    """Coefficients with p-values and intervals, without the intercept's; None if no maximum."""
    statsmodels = importlib.import_module("statsmodels.api")  # optional and slow to import
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asked of the result below
        try:
            result = statsmodels.Logit(label, design).fit(disp=0, maxiter=100)
        except np.linalg.LinAlgError:
            return None
    if not result.mle_retvals["converged"] or not np.isfinite(result.pvalues).all():
        return None
    return [
        Association(float(value), float(p_value), None, (float(low), float(high)))
        for value, p_value, (low, high) in list(
            zip(result.params, result.pvalues, result.conf_int(), strict=True)
        )[1:]
    ]
