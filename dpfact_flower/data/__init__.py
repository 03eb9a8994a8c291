"""Convert EHR tables into one validated tensor per site.

    EHR tables -> sources -> a reader -> events (-> roll_up) -> cooccurrence -> SiteData (.npz)
                                                                 Vocabulary -^   for each site

For each kind of EHR, `dpfact_flower.data.readers` has a reader: an SQL script or a module. A reader
turns tables in DuckDB into patients, events and code descriptions. `cooccurrence` then counts how
often codes occur together. A run reads the hospital's `SiteData` file and does not need DuckDB.

All sites share one code list (`Vocabulary`) for each feature mode, such as diagnoses. A privacy
guarantee holds only if these lists are public and were not derived from patients' data. Pass public
lists to the reader as ``vocabularies=``.
"""
