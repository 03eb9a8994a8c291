"""Measure the effect of broader codes: compare a cohort with its rolled-up versions.

    python -m simulation.studies.roll_up codes=data/dx icd3=data/dx-icd3 chapter=data/dx-chapter

Make each folder with `dpfact data ... --roll-up` from the same tables. The study first prints how
many patients each folder has. The study uses only patients who are at the same site in all folders.
A row shows one grouping and one kind of model. The share of the best fit and the factor match are
those of `simulation.studies.real_data`. A third column counts the private models that beat every
null in both measures. The number of phenotypes that could be named and the AUC for death are those
of `simulation.studies.nameable`.

Share, match and names are relative to a grouping's own codes, ceiling and null, so do not compare
them between groupings. The AUC is for the same patients and deaths in all rows, so it can be
compared. Noise is fresh.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.errors import SettingsError
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.studies.halves import HALF, half, merged
from simulation.studies.nameable import auc, named, tied
from simulation.studies.real_data import Study
from simulation.systems import NO_NOISE

_COLUMNS = ("share", "match", "beat", "named", "AUC")


def of_the_same(cohorts: Mapping[str, Cohort]) -> dict[str, Cohort]:
    """Return the cohorts, each with only the patients who are at the same site in all of them.

    Raise a `SettingsError` if a cohort has no identifiers, or if a site is left without a patient.
    """
    people = {way: _patients(way, cohort) for way, cohort in cohorts.items()}
    sites = [site.name for site in next(iter(cohorts.values())).sites]
    shared = {
        site: reduce(set.intersection, (set(found.get(site, ())) for found in people.values()))
        for site in sites
    }
    if empty := [site for site, common in shared.items() if not common]:
        raise SettingsError(f"folders: no patient of the site {empty[0]} is in all of them")
    return {
        way: replace(
            cohort,
            truth=None,
            sites=tuple(_only(site, shared[site.name]) for site in cohort.sites
                        if site.name in shared),
        )
        for way, cohort in cohorts.items()
    }  # fmt: skip


def _only(site: SiteData, patients: set[str]) -> SiteData:
    """Return the site with only the given patients, ordered by identifier."""
    rows = {patient: row for row, patient in enumerate(site.patients or ())}
    return site[[rows[patient] for patient in sorted(patients)]]


def _patients(way: str, cohort: Cohort) -> dict[str, tuple[str, ...]]:
    if any(site.patients is None for site in cohort.sites):
        raise SettingsError(f"{way}: its patients have no identifiers, so nobody can be compared")
    return {site.name: site.patients or () for site in cohort.sites}


def lines(way: str, study: Study, epsilons: Sequence[float], seeds: int) -> Iterator[str]:
    """Yield a grouping's rows of the table, one for each kind of model."""
    pairs = tied(study.tensor)
    for row, models in study.cells(epsilons, seeds):
        private = row["epsilon"] is not None
        area = _spread([auc(study.cohort, model) for model in models], 3)
        if row["auc_raw_codes"] is not None:
            area += f", all codes {row['auc_raw_codes']:.3f}"
        cells = [
            way,
            row["codes"],
            f"epsilon {row['epsilon']}" if private else row["model"].partition(":")[0],
            "{share_of_fit:.2f} ± {share_spread:.2f}".format(**row),
            "{fms:.2f} ± {fms_spread:.2f}".format(**row),
            f"{row['models_that_beat']} of {len(models)}" if private else "",
            _spread([named(model, pairs) for model in models], 1),
            area,
        ]
        yield f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "ways", nargs="+", metavar="WAY=FOLDER", help="name and folder that dpfact data wrote"
    )
    parser.add_argument("--rank", type=at_least(1), default=20)
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[NO_NOISE, 4, 1])
    parser.add_argument(
        "--seeds", type=at_least(1), default=4, help="number of private models, and of nulls"
    )
    parser.add_argument(
        "--references", type=at_least(2), default=3, help="number of fits without noise"
    )
    parser.add_argument("--half", **HALF)
    parser.add_argument("--merge", type=at_least(1), default=1, help="merge so many sites into one")
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        _compare(given)


def _compare(given: argparse.Namespace) -> None:
    folders = dict(way.partition("=")[::2] for way in given.ways)
    if len(folders) < 2 or not all(folders.values()):
        raise SettingsError(f"ways: need two or more of WAY=FOLDER; got {' '.join(given.ways)}")
    cohorts = {way: Cohort.load(folder) for way, folder in folders.items()}
    held = ", ".join(f"{way} {len(cohort):,}" for way, cohort in cohorts.items())
    same = of_the_same(cohorts)
    size = len(next(iter(same.values())))
    print(f"patients: {held}; in all {size:,}; R = {given.rank}")  # noqa: T201
    print("| codes | number | model | " + " | ".join(_COLUMNS) + " |")  # noqa: T201
    print("|---" * (3 + len(_COLUMNS)) + "|", flush=True)  # noqa: T201
    for way, cohort in same.items():
        chosen = half(merged(cohort, given.merge), given.half)
        study = Study(chosen, given.rank, given.references)
        for line in lines(way, study, given.epsilons, given.seeds):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
