/*
help = """
MIMIC-IV, full or demo: one site per first care unit or service.

SOURCE is a folder that contains hosp and icu (.csv, .csv.gz or .parquet), or a
database. If icu is missing, sites are services unless you use --by. ICD-9 and
ICD-10 codes are kept apart. By default, the most frequent 202 procedures, 316
diagnoses and 200 drugs are kept.
"""
modes = { procedures = 202, diagnoses = 316, drugs = 200 }
window = "encounter"
folders = ["hosp", "icu", "core"]  # up to version 1.0, core holds the admissions

[options.by]
default = ""
choices = ["careunit", "service"]
help = "How to form sites; default: by care unit, or by service if icu is missing."

[options.drugs]
default = false
help = "Add drugs as a feature mode."
*/

-- This script reads MIMIC-IV 1.0 to 3.1. All of a patient's admissions belong to the unit of the
-- first ICU stay, or to the service of the first admission. If sites are units, patients who were
-- never in an ICU are left out.
--
-- Codes are recorded per admission, in ICD-9 or ICD-10, without dots. The same text may be a code
-- in both versions, so the prefixes icd9: and icd10: keep them apart (icd9:4019, icd10:I10).
-- As in MIMIC-III, diagnoses have no dates, so the window is the admission, in which each code
-- counts once. Drug codes are the names in prescriptions, in lower case. Solvents
-- (drug_type BASE and ADDITIVE) are left out.

CREATE MACRO icd(version, code) AS 'icd' || version || ':' || upper(replace(code, '.', ''));

CREATE MACRO dissolves(drug_type) AS coalesce(upper(drug_type) IN ('BASE', 'ADDITIVE'), false);

CREATE TABLE sites AS
SELECT coalesce(nullif($by, ''), if(list_contains($tables, 'services')
    AND NOT list_contains($tables, 'icustays'), 'service', 'careunit')) AS kind;

-- @count tables missing: sites are services
SELECT 'icustays', count(*) FROM sites WHERE kind = 'service' AND $by = '';

-- @load icustays
-- @when (SELECT kind = 'careunit' FROM sites)
-- @where subject_id IS NOT NULL
CREATE TABLE icustays (subject_id VARCHAR, intime TIMESTAMP NOT NULL, first_careunit VARCHAR);

-- @load services
-- @when (SELECT kind = 'service' FROM sites)
-- @where subject_id IS NOT NULL
CREATE TABLE services (subject_id VARCHAR, transfertime TIMESTAMP NOT NULL, curr_service VARCHAR);

-- @load admissions
CREATE TABLE admissions (
    subject_id VARCHAR, hospital_expire_flag BOOLEAN, admittime TIMESTAMP DEFAULT NULL,
    dischtime TIMESTAMP DEFAULT NULL);

-- @count rows without hospital_expire_flag, counted as no death
SELECT 'admissions', count(*) FROM admissions WHERE hospital_expire_flag IS NULL;

-- @patients
SELECT subject_id AS patient, first(place ORDER BY arrived, place) AS site
FROM (SELECT subject_id, intime AS arrived, first_careunit AS place FROM icustays
      UNION ALL SELECT * FROM services)
GROUP BY subject_id;

-- @count patients without a care unit or service, left out
SELECT 'admissions', count(DISTINCT subject_id) FROM admissions
WHERE subject_id NOT IN (SELECT patient FROM patients);

-- @warn patients who are not in it, labelled 0
SELECT 'admissions', count(*) FROM patients ANTI JOIN admissions ON subject_id = patient;

-- @label died
SELECT subject_id FROM admissions WHERE hospital_expire_flag;

-- @stays
SELECT subject_id AS patient, admittime AS begun, dischtime AS ended FROM admissions;

-- @load procedures_icd
CREATE TABLE procedures (
    subject_id VARCHAR, hadm_id VARCHAR, icd_code VARCHAR, icd_version VARCHAR);

-- @load diagnoses_icd
CREATE TABLE diagnoses (
    subject_id VARCHAR, hadm_id VARCHAR, icd_code VARCHAR, icd_version VARCHAR);

CREATE VIEW coded AS
SELECT 'procedures' AS mode, * FROM procedures
UNION ALL SELECT 'diagnoses', * FROM diagnoses;

-- @refuse column icd_code must be codes without a final .0 (in pandas, read codes with dtype=str)
SELECT mode || '_icd', count(*) FROM coded WHERE icd_code LIKE '%.0' GROUP BY mode;

-- @count rows without a code or a patient, left out
SELECT mode || '_icd', count(*) FROM coded
WHERE icd_code IS NULL OR subject_id IS NULL GROUP BY mode;

-- @count rows whose icd_version is neither 9 nor 10, left out
SELECT mode || '_icd', count(*) FROM coded
WHERE icd_code IS NOT NULL AND subject_id IS NOT NULL
    AND coalesce(icd_version NOT IN ('9', '10'), true) GROUP BY mode;

-- @warn rows with short codes, which may lack leading zeros
SELECT mode || '_icd', count(*) FROM coded
WHERE length(replace(icd_code, '.', '')) < 3 GROUP BY mode;

-- @load prescriptions
-- @when $drugs
CREATE TABLE prescriptions (
    subject_id VARCHAR, hadm_id VARCHAR, drug VARCHAR, drug_type VARCHAR DEFAULT NULL);

-- @count rows without a drug or a patient, left out
SELECT 'prescriptions', count(*) FROM prescriptions WHERE subject_id IS NULL OR drug IS NULL;

-- @count rows of drug_type BASE or ADDITIVE, left out
SELECT 'prescriptions', count(*) FROM prescriptions WHERE dissolves(drug_type);

-- @events
SELECT mode, subject_id AS patient, hadm_id AS encounter, icd(icd_version, icd_code) AS code
FROM coded WHERE icd_version IN ('9', '10')
UNION ALL
SELECT 'drugs', subject_id, hadm_id, trim(regexp_replace(lower(drug), '[\pC\pZ]+', ' ', 'g'))
FROM prescriptions WHERE NOT dissolves(drug_type);

-- @load d_icd_procedures
-- @optional codes have the package's own names
CREATE TABLE procedure_titles (icd_code VARCHAR, icd_version VARCHAR, long_title VARCHAR);

-- @load d_icd_diagnoses
-- @optional codes have the package's own names
CREATE TABLE diagnosis_titles (icd_code VARCHAR, icd_version VARCHAR, long_title VARCHAR);

-- @describe
SELECT 'procedures' AS mode, icd(icd_version, icd_code) AS code, long_title AS description
FROM procedure_titles
UNION ALL SELECT 'diagnoses', icd(icd_version, icd_code), long_title FROM diagnosis_titles;
