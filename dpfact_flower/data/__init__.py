"""Convert EHR tables into one validated tensor per site.

For each kind of EHR, `dpfact_flower.data.readers` has a reader: an SQL script or a module. A reader
loads the tables into DuckDB, and selects patients, events and code descriptions. `roll_up` can
replace codes with broader groups. `cooccurrence` counts how often codes occur together. A run reads
a site's `SiteData` file, and does not need DuckDB.

All sites share one code list (`Vocabulary`) for each feature mode, such as diagnoses. A privacy
guarantee holds only if all code lists are public and none was derived from patients' data. Pass
public code lists to the reader as ``vocabularies=``.
"""
