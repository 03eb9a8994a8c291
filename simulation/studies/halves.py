"""Split a cohort's patients into a tuning half and a reporting half, or merge its sites."""

from dataclasses import replace
from typing import Any

import numpy as np

from dpfact_flower.data.site_data import Cohort, SiteData
from simulation.baselines import stacked

HALVES = ("both", "tune", "report")
OTHER = {"tune": "report", "report": "tune"}
HALF: Any = {"choices": HALVES, "default": "both", "help": "which half of each site's patients"}
"""What a study's option ``--half`` accepts."""
_SEED = 0


def half(cohort: Cohort, which: str) -> Cohort:
    """Return one half of every site's patients, drawn with a fixed seed. "both" means everybody.

    The name of the returned cohort ends with the name of the half.
    """
    if which == "both":
        return cohort
    sites = []
    for number, site in enumerate(cohort.sites):
        rng = np.random.default_rng([_SEED, number])
        taken = rng.permutation(site.tensor.n_patients) % 2 == HALVES.index(which) - 1
        sites.append(site[np.flatnonzero(taken)])
    return replace(cohort, name=f"{cohort.name}-{which}", sites=tuple(sites), truth=None)


def merged(cohort: Cohort, size: int) -> Cohort:
    """Merge every `size` successive sites. Labels are kept if all sites of a group have them."""
    if size == 1:
        return cohort
    groups = [cohort.sites[first : first + size] for first in range(0, len(cohort.sites), size)]
    return replace(cohort, sites=tuple(map(_one, groups)), truth=None)


def _one(group: tuple[SiteData, ...]) -> SiteData:
    labels = [name for name in group[0].labels if all(name in site.labels for site in group)]
    return SiteData(
        group[0].name,
        stacked([site.tensor for site in group]),
        group[0].vocabularies,
        {name: np.concatenate([site.labels[name] for site in group]) for name in labels},
    )
