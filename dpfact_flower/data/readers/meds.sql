/*
help = """
MEDS, the Medical Event Data Standard: one site, without labels.

SOURCE is a folder that contains data and metadata.
"""
folders = ["metadata"]
named = true

[options.mode]
default = { procedures = "PROCEDURE//", diagnoses = "DIAGNOSIS//" }
help = "A mode and its codes' prefix; default: procedures=PROCEDURE// and diagnoses=DIAGNOSIS//."
*/

-- This script reads MEDS 0.3 and 0.4. A code that begins with a mode's prefix belongs to the mode,
-- and the prefix is removed. If an ICD version follows, as in ICD//10//I10, the code is icd10:I10.
-- MEDS has no encounters, so the window must be in days. MEDS records the time of death but not the
-- place, so there is no label.

CREATE TABLE prefixes AS
SELECT unnest(map_keys($mode)) AS mode, unnest(map_values($mode)) AS prefix;

CREATE MACRO bare(code, prefix) AS regexp_replace(
    nullif(trim(code[length(prefix) + 1:]), ''),
    '^ICD(?://|[_ -])?(9|10)(?:[_ -]?(?:CM|PCS|PROC))?//', 'icd\1:');

-- @load data
-- @where len(list_filter(map_values($mode), lambda prefix: starts_with(code, prefix))) > 0
CREATE TABLE measured (subject_id VARCHAR, time TIMESTAMP, code VARCHAR);

-- @count rows without a time, left out
SELECT 'data', count(*) FROM measured WHERE time IS NULL;

-- @events
SELECT mode, subject_id AS patient, time, bare(code, prefix) AS code
FROM measured JOIN prefixes ON starts_with(code, prefix);

-- @load codes
-- @optional codes have the package's own names
CREATE TABLE titles (code VARCHAR, description VARCHAR DEFAULT NULL);

-- @describe
SELECT mode, bare(code, prefix) AS code, description
FROM titles JOIN prefixes ON starts_with(code, prefix);

-- @patients
SELECT patient, $name AS site FROM people;
