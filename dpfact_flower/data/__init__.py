"""Convert EHR tables into one validated tensor per site.

    EHR tables -> sources -> a reader -> events (-> roll_up) -> cooccurrence -> SiteData (.npz)
                                                                 Vocabulary -^   for each site

For each kind of EHR, `dpfact_flower.data.readers` has a reader: an SQL script or a module. A reader
turns tables in DuckDB into patients, events and code descriptions. `cooccurrence` counts how often
codes occur together. A run reads the hospital's `SiteData` file and does not need DuckDB.

All sites share one code list (`Vocabulary`) for each feature mode, such as diagnoses. A privacy
guarantee holds only if all code lists are public and none was derived from patients' data. Pass
public code lists to the reader as ``vocabularies=``.
"""
