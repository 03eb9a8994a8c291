"""List a tensor's cells by patient and codes, as a person would."""

from dpfact_flower.data.site_data import Cohort, SiteData


def described(cohort: Cohort, mode: int) -> dict[str, str]:
    """Return the description of each code of a mode, by its number from 0."""
    vocabulary = cohort.vocabularies[mode]
    return dict(zip(vocabulary.codes, vocabulary.descriptions, strict=True))


def cells_of_site(site: SiteData) -> dict[tuple[str, ...], int]:
    """Return every cell as {(patient, code of mode 1, ...): count}."""
    return {
        (
            site.patients[row],
            *(v.codes[i] for v, i in zip(site.vocabularies, codes, strict=True)),
        ): int(value)
        for (row, *codes), value in zip(site.tensor.indices, site.tensor.values, strict=True)
    }


def cells_of(cohort: Cohort) -> dict[tuple[str, ...], int]:
    """Return every cell of every site as {(site, patient, code of mode 1, ...): count}."""
    return {
        (site.name, *cell): count
        for site in cohort.sites
        for cell, count in cells_of_site(site).items()
    }
