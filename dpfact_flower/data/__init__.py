"""Convert EHR tables to one validated tensor per site.

    EHR tables -> sources -> a reader -> events (-> roll_up) -> cooccurrence -> SiteData (.npz)
                                                                 Vocabulary -^   of each site

Each kind of EHR has a reader in `dpfact_flower.data.readers`, which is an SQL script or a module.
`event_tables` reads any other EHR. A reader opens the tables of its source in DuckDB (`tables`,
`sources`) and turns them into patients, events (`clinical_events`) and descriptions. `cooccurrence`
counts which codes occur together. The result is a `Cohort`, which holds all sites of open data in
one place for simulation. A hospital's own file holds one `SiteData`. A run reads only that file, so
DuckDB is needed only to prepare data (``pip install "dpfact-flower[data]"``).

All sites share a `Vocabulary` for each feature mode. A run with a privacy guarantee needs
vocabularies from public lists, not from patients. Pass them to the reader as ``vocabularies=``.
"""

from dpfact_flower.data.site_data import Cohort, SiteData, Truth
from dpfact_flower.data.vocabulary import Vocabulary

__all__ = ["Cohort", "SiteData", "Truth", "Vocabulary"]
