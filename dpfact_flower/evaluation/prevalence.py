"""Compute phenotype tables: each phenotype's codes, frequency and associations with outcomes.

Reports may be shared, so tables hide the number of patients with a phenotype, a code or an outcome
if that number is below ten. Tables also hide numbers that would let readers derive a count below
ten. The number of patients at a site is never hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, norm
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.evaluation.membership import (
    column_shares,
    has_phenotype,
    leading_codes,
    mode_presence,
)
from dpfact_flower.evaluation.prediction import MOST_PREDICTED
from dpfact_flower.evaluation.tables import (
    SMALL,
    Association,
    CodeWeight,
    Phenotype,
    PhenotypeTable,
    SiteUsage,
)
from dpfact_flower.tensor import Factors

_MANY = 100
"""Lowest number of patients for which "all except fewer than `SMALL`" is shown as "nearly all"."""
_CODES = 8  # the most of each mode in a table
_RIDGE = 1.0
"""Penalty on coefficients, with the effect of a standard normal prior."""


def phenotype_table(
    memberships: Sequence[NDArray[np.floating[Any]]], features: Factors, sites: Sequence[SiteData]
) -> PhenotypeTable:
    """Return a table of all phenotypes, computed from the scores of all sites' patients.

    `memberships` holds one array of scores per site. The table omits labels that some sites lack.
    """
    has = [has_phenotype(scores) for scores in memberships]
    everybody, who = np.concatenate(memberships), np.concatenate(has)
    names = [name for name in sites[0].labels if all(name in site.labels for site in sites)]
    labels = {
        name: np.concatenate([site.labels[name] for site in sites]).astype(float) for name in names
    }
    parts = {
        name: _differences(label, [labels[other] for other in names[: names.index(name)]])
        for name, label in labels.items()
    }
    outcomes = {
        name: _associations(everybody, who, label, parts[name]) for name, label in labels.items()
    }
    codes, carrying = {}, np.ones_like(who)
    modes = zip(sites[0].vocabularies, features, strict=True)
    for mode, (vocabulary, factor) in enumerate(modes, start=1):
        present = scipy.sparse.vstack([mode_presence(site.tensor, mode) for site in sites])
        codes[vocabulary.name] = _codes(vocabulary, factor, present, who)
        carrying &= present @ leading_codes(factor).astype(np.float64) > 0
    carriers, both, owners = (mask.sum(axis=0) for mask in (carrying, who & carrying, who))
    patients, with_any = len(who), np.count_nonzero(who.any(axis=1))
    reveals_others = len(owners) > 1 and (with_any - owners < SMALL).any()
    almost_all = patients - owners < SMALL
    norms = np.linalg.norm(everybody, axis=0)
    reveals = _reveals_outside(both, carriers, owners, patients)
    sizes = {site.name: len(site) for site in sites}
    counts = {site.name: own.sum(axis=0) for site, own in zip(sites, has, strict=True)}
    return PhenotypeTable(
        patients,
        tuple(
            Phenotype(
                number=r + 1,
                weight=float(norms[r]),
                prevalence=_guarded(owners[r], patients),
                codes={mode: of_mode[r] for mode, of_mode in codes.items()},
                outcomes={name: association[r] for name, association in outcomes.items()},
                by_site=_by_site({name: int(own[r]) for name, own in counts.items()}, sizes),
                precision=_hidden_if(almost_all[r], _guarded(both[r], owners[r])),
                carriers=_hidden_if(reveals[r], _guarded(carriers[r], patients)),
            )
            for r in range(who.shape[1])
        ),
        {n: _rate(label, np.ones(patients, bool), parts[n]) for n, label in labels.items()},
        _hidden_if(reveals_others, _guarded(patients - with_any, patients)),
    )


def _codes(
    vocabulary: Vocabulary, factor: NDArray[np.floating[Any]], present: Any, who: NDArray[np.bool_]
) -> list[tuple[CodeWeight, ...]]:
    """For one mode, return the codes with the largest weights in each phenotype."""
    carriers, everybody = who.T.astype(np.float64) @ present, present.sum(axis=0)
    patients, owners = len(who), who.sum(axis=0)
    reveals = _reveals_outside(carriers, everybody, owners[:, None], patients)
    shares = column_shares(factor)
    order = np.argsort(-np.abs(shares), axis=0, kind="stable")[:_CODES]

    def code(r: int, at: int) -> CodeWeight:
        return CodeWeight(
            vocabulary.codes[at],
            vocabulary.descriptions[at],
            float(shares[at, r]),
            observed=_hidden_if(patients - owners[r] < SMALL, _guarded(carriers[r, at], owners[r])),
            everybody=_hidden_if(reveals[:, at].any(), _guarded(everybody[at], patients)),
        )

    return [
        tuple(code(r, at) for at in own if shares[at, r] != 0)
        for r, own in enumerate(order.T.tolist())
    ]


def _reveals_outside(
    inside: NDArray[Any], carriers: NDArray[Any], owners: NDArray[Any], patients: int
) -> NDArray[np.bool_]:
    """Return whether readers could infer a small count among the patients without a phenotype.

    `carriers` counts the patients with the code, `owners` counts the patients with the phenotype,
    and `inside` counts the patients with both. Check patients with and without the code separately.
    """
    outside = carriers - inside
    few = np.minimum(outside, patients - owners - outside) < SMALL
    return np.asarray(few & (inside >= SMALL))


Count = float | np.number[Any]


def _guarded(count: Count, patients: Count) -> Any:
    """Return a share, or a text like "<10" to hide a small count, even if it is 0."""
    if count < SMALL:
        return f"<{SMALL}"
    if patients - count < SMALL:
        return "most" if patients < _MANY else "nearly all"
    return float(count / patients)


def _hidden_if(reveals: bool | np.bool_, shown: float | str | None) -> Any:
    """Return the value to show, or ``hidden`` if the value would reveal a small count."""
    return "hidden" if reveals and isinstance(shown, float) else shown


def _by_site(counts: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, float | str]:
    """Return a phenotype's prevalence at each site, or a text such as "hidden" to hide a count."""
    lacking = {site: sizes[site] - count for site, count in counts.items()}
    shown = {site: _guarded(count, sizes[site]) for site, count in counts.items()}
    return shown | dict.fromkeys(_hidden(counts, sizes) + _hidden(lacking, sizes), "hidden")


def _hidden(counts: Mapping[str, int], sizes: Mapping[str, int]) -> list[str]:
    """Return the sites whose counts must be hidden so that the total reveals no small count."""
    small = [site for site, count in counts.items() if count < SMALL]
    others = sorted(counts.keys() - small, key=lambda site: (counts[site], site))
    hidden: list[str] = []
    if not small or sum(counts.values()) < SMALL:
        return hidden
    while _reveals(counts, small, hidden, others, sizes):
        if not others:
            return hidden + small
        hidden.append(others.pop(0))
    return hidden


def _reveals(
    counts: Mapping[str, int], small: list[str], hidden: list[str], others: list[str],
    sizes: Mapping[str, int],
) -> bool:  # fmt: skip
    """Return whether the total and the shown counts would let readers narrow down a small count."""
    rest = sum(counts[site] for site in (*small, *hidden))
    largest = counts[others[0]] if others else rest  # bound on a hidden number
    most = (SMALL - 1) * (len(small) - 1) + sum(min(largest, sizes[site]) for site in hidden)
    return rest < SMALL * (1 + len(hidden)) or rest > most


def site_usage(patient_factors: Sequence[ArrayLike], sites: Sequence[str]) -> SiteUsage:
    """Return the column norms of each site's patient factor."""
    factors = [np.asarray(factor, np.float64) for factor in patient_factors]
    return SiteUsage(
        tuple(sites),
        tuple(tuple(np.linalg.norm(factor, axis=0).tolist()) for factor in factors),
        tuple(tuple(not column.any() for column in factor.T) for factor in factors),
    )


def _differences(
    label: NDArray[np.float64], others: Sequence[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """Return the groups of patients whose number follows from the numbers of two nested labels."""
    return [
        whole - part
        for other in others
        for whole in (label, 1 - label)
        for part in (other, 1 - other)
        if (part <= whole).all()
    ]


def _associations(
    memberships: NDArray[np.floating[Any]], has: NDArray[np.bool_], label: NDArray[np.float64],
    parts: Sequence[NDArray[np.float64]],
) -> list[Association]:  # fmt: skip
    associations = []
    for r, association in enumerate(_coefficients(memberships, has, label)):
        rate, patients = _rate(label, has[:, r], parts), int(has[:, r].sum())
        interval = None
        if isinstance(rate, float):
            low, high = binomtest(round(rate * patients), patients).proportion_ci(method="wilson")
            interval = float(low), float(high)
        associations.append(replace(association, rate=rate, rate_interval=interval))
    return associations


def _rate(
    label: NDArray[np.float64], has: NDArray[np.bool_], parts: Sequence[NDArray[np.float64]] = ()
) -> float | str:
    """Return an outcome's rate among a phenotype's patients, unless the rate reveals a small count.

    From rates and totals, readers could compute how many patients have or lack the outcome, or
    belong to one of the label's `parts` (see `_differences`).
    """
    events = [int(label[who].sum()) for who in (has, ~has)]
    counts = [int(has.sum()), int((~has).sum())]
    if events[0] < SMALL:
        return f"<{SMALL}"
    others = [counts[0] - events[0], *([events[1], counts[1] - events[1]] if counts[1] else [])]
    small = min(others) < SMALL or any(isinstance(_rate(part, has), str) for part in parts)
    return "hidden" if small else events[0] / counts[0]


def _coefficients(
    memberships: NDArray[np.floating[Any]], has: NDArray[np.bool_], label: NDArray[np.float64]
) -> list[Association]:
    """Regress a label on scores. Each phenotype gets a coefficient, or a reason for having none."""
    if len(label) > MOST_PREDICTED:
        some = np.random.default_rng(0).permutation(len(label))[:MOST_PREDICTED]
        memberships, has, label = memberships[some], has[some], label[some]
    if min(label.sum(), (1 - label).sum()) < SMALL:
        few = Association(reason=f"fewer than {SMALL} patients with it, or without it")
        return [few] * memberships.shape[1]
    reasons = (_obstacle(own, label[who]) for own, who in zip(memberships.T, has.T, strict=True))
    return [
        Association(reason=reason) if reason else association
        for reason, association in zip(reasons, _logistic(memberships, label), strict=True)
    ]


def _obstacle(column: NDArray[np.floating[Any]], label: NDArray[np.float64]) -> str | None:
    """Return the reason why a phenotype cannot have a coefficient, or None if it can."""
    if len(label) < SMALL:
        return f"fewer than {SMALL} have it"
    if np.ptp(column) == 0:
        return "all scores are equal"
    if label.sum() < SMALL:
        return f"fewer than {SMALL} have both"
    if (1 - label).sum() < SMALL:
        return f"fewer than {SMALL} who have it lack the outcome"
    return None


def _logistic(
    memberships: NDArray[np.floating[Any]], label: NDArray[np.float64]
) -> list[Association]:
    """Fit logistic regression to standardised scores. A ridge penalty keeps coefficients finite."""
    design = StandardScaler().fit_transform(memberships.astype(np.float64))
    model = LogisticRegression(C=1 / _RIDGE, solver="newton-cholesky", tol=1e-10)
    risk = model.fit(design, label).predict_proba(design)[:, 1]
    design = np.column_stack([np.ones(len(design)), design])
    information = design.T @ (design * (risk * (1 - risk))[:, None])
    information[1:, 1:] += _RIDGE * np.eye(len(information) - 1)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))[1:]
    estimates = model.coef_[0]
    p_values = 2 * norm.sf(np.abs(estimates) / errors)
    reach = norm.ppf(0.975) * errors
    return [
        Association(value, p_value, None, (value - half, value + half))
        for value, p_value, half in np.column_stack([estimates, p_values, reach]).tolist()
    ]
