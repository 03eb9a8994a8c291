"""From EHR tables to one validated tensor per site.

    EHR tables -> sources -> a reader -> events (-> roll_up) -> cooccurrence -> SiteData (.npz)
                                                                 Vocabulary -^   of each site

A reader (a script of SQL or a module in `dpfact_flower.data.readers` for each kind of EHR,
`event_tables` for any other) opens the tables of its source in DuckDB (`tables`, `sources`) and
brings them into patients, events (`clinical_events`) and descriptions. `cooccurrence` counts what
occurs together. The result is a `Cohort`: all sites of open data in one place, for simulation. A
hospital's own file holds one `SiteData`, and a run reads nothing else, so only preparing data needs
DuckDB (``pip install "dpfact-flower[data]"``).

All sites share a `Vocabulary` for each feature mode. Where a privacy guarantee is wanted, it comes
from a public list, not from patients: pass ``vocabularies=`` to the reader.
"""

from dpfact_flower.data.site_data import Cohort, SiteData, Truth
from dpfact_flower.data.vocabulary import Vocabulary

__all__ = ["Cohort", "SiteData", "Truth", "Vocabulary"]
