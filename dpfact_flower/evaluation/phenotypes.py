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
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.tables import (
    Association,
    CodeWeight,
    Phenotype,
    PhenotypeTable,
    SiteUsage,
)
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.cp import CPModel

_SMALL = 10
_FEWEST = 5
"""Fewest patients on either side of a label, of all and of a phenotype's, for a coefficient."""
_LARGEST = 20.0
"""Log odds per standard deviation: anything beyond is separation, not an estimate."""


def phenotype_table(
    model: CPModel,
    vocabularies: Sequence[Vocabulary],
    *,
    labels: Mapping[str, ArrayLike] | None = None,
    sites: Mapping[str, int] | None = None,
    top: int = 5,
    threshold: float = 0.01,
    small_cells: bool = True,
) -> PhenotypeTable:
    """Describe every component of a model.

    Code weights are columns scaled to an absolute sum of one, so that a weight is the share of the
    phenotype's codes.

    Parameters
    ----------
    model : CPModel
        Of one site, or of several, with their patients' factors stacked.
    vocabularies : sequence of Vocabulary
        One per feature mode.
    labels : mapping of str to array_like of 0 and 1, shape (patients,), optional
        By name.
    sites : mapping of str to int, optional
        Number of patients of each site, in the order of the model's patients.
    top : int
        Codes to list per mode; those of weight zero are omitted.
    threshold : float
        A patient *has* a phenotype when it carries more than this share of the patient's
        memberships (absolute, weighted by the features' column norms). 0 is the paper's "non-zero
        membership", which P-SGD's tiny values blur.
    small_cells : bool
        Whether to guard counts under ten: such a prevalence or rate of an outcome is ``<10``, and
        the phenotype gets no coefficient.

    Raises
    ------
    DataError
        If vocabularies or labels do not fit the model, or an argument is out of range.
    """
    if len(vocabularies) != len(model.features):
        raise DataError(
            f"vocabularies: need {len(model.features)}, one per feature mode, "
            f"got {len(vocabularies)}"
        )
    if type(top) is not int or top < 1 or not 0 <= threshold < 1:
        raise DataError(
            "phenotypes: need a whole number of top codes, 1 or more, and a threshold in [0, 1); "
            f"got {top}, {threshold}"
        )
    has = has_phenotype(model, threshold)
    least = _SMALL if small_cells else 0
    checked = {
        name: _checked_labels(name, values, model.shape[0])
        for name, values in (labels or {}).items()
    }
    associations = {
        name: _associations(model.factors[0], has, label, least) for name, label in checked.items()
    }
    tops = [top_codes(*pair, top) for pair in zip(vocabularies, model.features, strict=True)]
    names = [vocabulary.name for vocabulary in vocabularies]
    counts, weights, everybody = has.sum(axis=0), model.weights, np.ones(len(has), bool)
    by_site = _by_site(has, model.factors[0], sites or {}, least)
    return PhenotypeTable(
        model.shape[0],
        tuple(
            Phenotype(
                r + 1,
                float(weights[r]),
                _guarded(counts[r], model.shape[0], least),
                {name: codes[r] for name, codes in zip(names, tops, strict=True)},
                {name: found[r] for name, found in associations.items()},
                by_site[r],
            )
            for r in range(model.rank)
        ),
        {name: _rate(label, everybody, least) for name, label in checked.items()},
    )


def shared_table(
    memberships: Sequence[NDArray[np.float64]], features: Factors, sites: Sequence[SiteData]
) -> PhenotypeTable:
    """Describe the phenotypes that sites share, by all their patients together.

    Parameters
    ----------
    memberships : sequence of (I_t, R) ndarrays
        Of each site's patients, in one unit for all sites.
    features : tuple of (I_n, R) ndarrays
        The shared factors; they are scaled to columns of norm 1.
    sites : sequence of SiteData
        In the order of `memberships`. A label that one of them lacks is not looked at.

    Raises
    ------
    DataError
        As `phenotype_table`.
    """
    everybody = np.concatenate(memberships)
    _, unit = CPModel.of(everybody, *features).normalized()
    labels = [name for name in sites[0].labels if all(name in site.labels for site in sites)]
    return phenotype_table(
        CPModel((everybody, *unit.features)),
        sites[0].vocabularies,
        labels={name: np.concatenate([site.labels[name] for site in sites]) for name in labels},
        sites={site.name: len(rows) for site, rows in zip(sites, memberships, strict=True)},
    )


def _guarded(count: int, patients: int, least: int) -> float | str:
    """A prevalence, unless it is that of too few patients."""
    return f"<{_SMALL}" if count < least else float(count / patients)


def _by_site(
    has: NDArray[np.bool_],
    memberships: NDArray[np.float64],
    sites: Mapping[str, int],
    least: int,
) -> list[dict[str, float | str]]:
    """Prevalence at each site, for each phenotype.

    One small number alone could be had back from the prevalence of all patients: then the smallest
    of the others is hidden too. A site that has switched the phenotype off has it in nobody, as its
    column of zeros says anyhow.
    """
    if sites and sum(sites.values()) != len(has):
        raise DataError(f"sites: have {sum(sites.values())} patients, the model {len(has)}")
    ends = np.cumsum(list(sites.values()))
    rows = {site: slice(end - sites[site], end) for site, end in zip(sites, ends, strict=True)}
    counts = {site: has[own].sum(axis=0) for site, own in rows.items()}
    used = {site: np.asarray(memberships[own].any(axis=0)) for site, own in rows.items()}
    return [
        _shown_by_site(
            {site: int(counts[site][r]) if used[site][r] else None for site in sites}, sites, least
        )
        for r in range(has.shape[1])
    ]


def _shown_by_site(
    counts: Mapping[str, int | None], sites: Mapping[str, int], least: int
) -> dict[str, float | str]:
    """A phenotype's row; the count is None where the site has switched it off."""
    shown = {
        site: 0.0 if count is None else _guarded(count, sites[site], least)
        for site, count in counts.items()
    }
    small = [site for site, share in shown.items() if isinstance(share, str)]
    others = {site: n for site, n in counts.items() if n is not None and site not in small}
    if len(small) == 1 and others:
        shown[min(others, key=others.__getitem__)] = "hidden"
    return shown


def has_phenotype(model: CPModel, threshold: float = 0.01) -> NDArray[np.bool_]:
    """Whether a phenotype carries more than `threshold` of a patient's memberships; (I, R).

    Memberships are taken absolute and multiplied by the features' column norms, so that the answer
    does not depend on how a component's scale is spread over its factors. A patient's row: it must
    not leave the site.
    """
    norms = np.prod([np.linalg.norm(factor, axis=0) for factor in model.features], axis=0)
    scaled = np.abs(model.factors[0]) * norms
    return np.asarray(scaled > threshold * scaled.sum(axis=1, keepdims=True))


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


def _checked_labels(name: str, labels: ArrayLike, patients: int) -> NDArray[np.float64]:
    given = np.asarray(labels)
    if given.shape != (patients,) or given.dtype.kind not in "biuf":
        raise DataError(f"label {name}: need shape ({patients},) of numbers, got {given.shape}")
    if not np.isin(given, (0, 1)).all():
        raise DataError(f"label {name}: must be 1 or 0")
    return given.astype(np.float64)


def _associations(
    memberships: NDArray[np.float64],
    has: NDArray[np.bool_],
    label: NDArray[np.float64],
    least: int,
) -> list[Association]:
    """How each phenotype goes with an outcome: how often, and with all others held equal."""
    return [
        replace(found, rate=_rate(label, has[:, r], least))
        for r, found in enumerate(_coefficients(memberships, has, label, least))
    ]


def _rate(label: NDArray[np.float64], has: NDArray[np.bool_], least: int) -> float | str | None:
    """Share with an outcome of those who have a phenotype, unless a count behind it is small.

    With the numbers of patients, which are known, it gives all four counts, of those without too.
    """
    events = [int(label[who].sum()) for who in (has, ~has)]
    counts = [int(has.sum()), int((~has).sum())]
    if not counts[0]:
        return None
    if events[0] < least:
        return f"<{_SMALL}"
    others = [counts[0] - events[0], *([events[1], counts[1] - events[1]] if counts[1] else [])]
    return "hidden" if min(others) < least else events[0] / counts[0]


def _coefficients(
    memberships: NDArray[np.float64],
    has: NDArray[np.bool_],
    label: NDArray[np.float64],
    least: int,
) -> list[Association]:
    """One logistic regression on all memberships that allow one."""
    rank = memberships.shape[1]
    if min(label.sum(), (1 - label).sum()) < _FEWEST:
        return [Association(reason=f"fewer than {_FEWEST} patients with or without it")] * rank
    reasons = [_obstacle(memberships[:, r], label[has[:, r]], least) for r in range(rank)]
    usable = [r for r in range(rank) if reasons[r] is None]
    found = [Association(reason=reason) for reason in reasons]
    if usable:
        design = memberships[:, usable]
        design = (design - design.mean(axis=0)) / design.std(axis=0)
        for r, association in zip(usable, _logistic(design, label), strict=True):
            found[r] = association
    return found


def _obstacle(column: NDArray[np.float64], label: NDArray[np.float64], least: int) -> str | None:
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


def _logistic(design: NDArray[np.float64], label: NDArray[np.float64]) -> list[Association]:
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
