/*
help = """
eICU, full or demo: treatments x ICD-9 diagnoses, by region, unit or hospital.

SOURCE is a folder of eICU's tables (.csv, .csv.gz or .parquet), or a database.
"""
modes = { treatments = 0, diagnoses = 0 }
window = "days in encounter"
min_patients = 20  # most hospitals in the demo have about ten patients, too few to factorise

[options.by]
default = "region"
choices = ["region", "unittype", "hospital"]
help = "How patients are divided into sites."

[options.treatment_level]
default = 3
help = "Number of components to keep in each treatment path; paths have 3 to 6."
*/

-- This script reads eICU Collaborative Research Database 2.0. A patient (uniquepid) belongs to the
-- site of the first unit stay. Stays are ordered by year of discharge, number of the hospital stay,
-- and time of admission to the unit. eICU has no dates within a year, so hospital stays in the same
-- year are ordered by their numbers, which are arbitrary but fixed.
--
-- Times are minutes since admission to the unit. hospitaladmitoffset makes times comparable within
-- a hospital stay but not between stays, so the window is always inside one hospital stay.

-- @load patient
CREATE TABLE stays (
    patientunitstayid BIGINT NOT NULL, patienthealthsystemstayid BIGINT NOT NULL,
    hospitaladmitoffset BIGINT NOT NULL, hospitaldischargeyear BIGINT NOT NULL,
    uniquepid VARCHAR, hospitalid VARCHAR, unittype VARCHAR, hospitaldischargestatus VARCHAR);

-- @count unit stays without discharge status, counted as no death
SELECT 'patient', count(*) FROM stays WHERE hospitaldischargestatus IS NULL;

-- @count unit stays without a patient, left out
SELECT 'patient', count(*) FROM stays WHERE uniquepid IS NULL;

-- @load hospital
-- @when $by = 'region'
CREATE TABLE hospitals (hospitalid VARCHAR UNIQUE, region VARCHAR);

-- @patients
SELECT uniquepid AS patient,
    first(CASE $by WHEN 'region' THEN region WHEN 'unittype' THEN unittype
                   ELSE 'hospital-' || hospitalid END
          ORDER BY hospitaldischargeyear, patienthealthsystemstayid, -hospitaladmitoffset,
                   patientunitstayid) AS site
FROM stays LEFT JOIN hospitals USING (hospitalid)
WHERE uniquepid IS NOT NULL GROUP BY uniquepid;

-- @label died
SELECT uniquepid FROM stays WHERE lower(hospitaldischargestatus) = 'expired';

CREATE TABLE placed AS
SELECT DISTINCT patientunitstayid::VARCHAR AS patientunitstayid, uniquepid AS patient,
    patienthealthsystemstayid AS encounter, hospitaladmitoffset
FROM stays;

-- @load treatment
CREATE TABLE treatments (
    patientunitstayid VARCHAR, treatmentoffset BIGINT, treatmentstring VARCHAR);

-- @load diagnosis
CREATE TABLE diagnoses (
    patientunitstayid VARCHAR, diagnosisoffset BIGINT, diagnosisstring VARCHAR, icd9code VARCHAR);

-- @count rows without a treatment, left out
SELECT 'treatment', count(*) FROM treatments WHERE treatmentstring IS NULL;

-- @count rows without a code, left out
SELECT 'diagnosis', count(*) FROM diagnoses WHERE icd9code IS NULL;

-- @count rows of a unit stay that is not in patient, left out
SELECT 'treatment', count(*) FROM treatments ANTI JOIN placed USING (patientunitstayid)
UNION ALL
SELECT 'diagnosis', count(*) FROM diagnoses ANTI JOIN placed USING (patientunitstayid);

-- Each diagnosis lists ICD-9-CM and ICD-10 codes with dots (401.9, I10). Only codes with the form
-- of ICD-9 are kept: 123, 123.45, V12.34, E123.4. ICD-10 has V codes with the same form, for
-- transport accidents. In an intensive care unit, V codes are assumed to be from ICD-9.
CREATE TABLE listed AS
SELECT * EXCLUDE icd9code, regexp_full_match(code,
    '\d{3}(\.\d{1,2})?|V\d{2}(\.\d{1,2})?|E\d{3}(\.\d)?') AS of_icd9
FROM (SELECT *, trim(unnest(string_split(icd9code, ','))) AS code FROM diagnoses);

DROP TABLE diagnoses;

-- @count codes that are not of ICD-9, left out
SELECT 'diagnosis', count(*) FROM listed WHERE NOT of_icd9;

-- Treatments are paths such as pulmonary|medications|bronchodilator, shortened to the first parts.
-- @events
SELECT 'treatments' AS mode, patient, encounter, treatmentoffset - hospitaladmitoffset AS time,
    array_to_string(string_split(treatmentstring, '|')[1:$treatment_level], '|') AS code
FROM treatments JOIN placed USING (patientunitstayid)
UNION ALL
SELECT 'diagnoses', patient, encounter, diagnosisoffset - hospitaladmitoffset, code
FROM listed JOIN placed USING (patientunitstayid) WHERE of_icd9;

-- A diagnosis is described by the path that is most frequent for its code.
-- @describe
SELECT mode, code, code AS description FROM codes WHERE mode = 'treatments'
UNION ALL
SELECT 'diagnoses', code, mode(diagnosisstring ORDER BY diagnosisstring)
FROM listed WHERE diagnosisstring IS NOT NULL AND of_icd9 GROUP BY code;
