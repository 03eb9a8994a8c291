"""Compute a secure sum on the server, from masked vectors and the messages that unmask the sum."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.privacy.secure_sum import masks
from dpfact_flower.privacy.secure_sum.keys import Question, Terms, context_of
from dpfact_flower.privacy.secure_sum.site import Masked, Opening, own_key


def sealed_for(site: str, answers: Mapping[str, Masked]) -> dict[str, bytes]:
    """Return the shares that other sites encrypted for `site`, keyed by the sender's name."""
    return {
        other: answered.sealed[site] for other, answered in answers.items()
        if site in answered.sealed
    }  # fmt: skip


def unopened(terms: Terms, question: Question, openings: Mapping[str, Opening]) -> list[str]:
    """Return the members whose seeds have not arrived and cannot yet be recovered from shares."""
    if not terms.dropouts:
        return []
    return [
        site for site in question.sites
        if site not in openings and len(_shares(site, question, openings)) < terms.threshold
    ]  # fmt: skip


def unmasked(
    terms: Terms, question: Question, answers: Mapping[str, Masked], openings: Mapping[str, Opening]
) -> NDArray[np.int64]:
    """Return the sum of all members' vectors.

    All members must have answered `question`, and `unopened` must return an empty list. The low
    bits that a member does not send add about a millionth to the variance of the member's noise.
    """
    total = masks.summed([answers[site].words for site in question.sites], question.width)
    if terms.dropouts:
        context = context_of(terms, question)
        seeds = {site: opening.seed for site, opening in openings.items()}
        for site in question.sites:
            if site not in seeds:
                seeds[site] = masks.seed_from(_shares(site, question, openings))
        masks.mask(total, (), [own_key(seeds[site], context, site) for site in question.sites])
    return masks.signed(total, question.width)


def _shares(site: str, question: Question, openings: Mapping[str, Opening]) -> dict[int, bytes]:
    """Map each sender's position (counted from 1) to the sender's share of a site's seed."""
    return {
        place: openings[other].shares[site]
        for place, other in enumerate(question.sites, start=1)
        if other in openings and site in openings[other].shares
    }
