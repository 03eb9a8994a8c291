/*
help = """
MIMIC-III, full or demo: one site per care unit, by the first ICU stay.

SOURCE is a folder of MIMIC's tables (.csv, .csv.gz or .parquet), or a database.
"""
modes = { procedures = 202, diagnoses = 316 }  # as in the paper
window = "encounter"
*/

-- All of a patient's admissions belong to the unit of the first ICU stay, so that no patient is at
-- two sites. In MIMIC-III, ICD-9 codes have no dates, because they are billed per admission. The
-- window is therefore the admission, in which each code counts once.

CREATE MACRO icd(code) AS replace(code, '.', '');

-- @load ICUSTAYS
-- @where subject_id IS NOT NULL
CREATE TABLE stays (
    subject_id VARCHAR, intime TIMESTAMP NOT NULL, first_careunit VARCHAR, icustay_id VARCHAR);

-- @load ADMISSIONS
CREATE TABLE admissions (
    subject_id VARCHAR, hospital_expire_flag BOOLEAN, admittime TIMESTAMP DEFAULT NULL,
    dischtime TIMESTAMP DEFAULT NULL);

-- @count rows without hospital_expire_flag, counted as no death
SELECT 'ADMISSIONS', count(*) FROM admissions WHERE hospital_expire_flag IS NULL;

-- @patients
SELECT subject_id AS patient, first(first_careunit ORDER BY intime, icustay_id) AS site
FROM stays GROUP BY subject_id;

-- @count patients without a row in ICUSTAYS, left out
SELECT 'ADMISSIONS', count(DISTINCT subject_id) FROM admissions
WHERE subject_id NOT IN (SELECT patient FROM patients);

-- @warn patients who are not in it, labelled 0
SELECT 'ADMISSIONS', count(*) FROM patients ANTI JOIN admissions ON subject_id = patient;

-- @label died
SELECT subject_id FROM admissions WHERE hospital_expire_flag;

-- @stays
SELECT subject_id AS patient, admittime AS begun, dischtime AS ended FROM admissions;

-- @load PROCEDURES_ICD
CREATE TABLE procedures (subject_id VARCHAR, hadm_id VARCHAR, icd9_code VARCHAR);

-- @load DIAGNOSES_ICD
CREATE TABLE diagnoses (subject_id VARCHAR, hadm_id VARCHAR, icd9_code VARCHAR);

CREATE VIEW coded AS
SELECT 'procedures' AS mode, * FROM procedures
UNION ALL SELECT 'diagnoses', * FROM diagnoses;

-- @refuse column icd9_code must be codes without a final .0 (in pandas, read codes with dtype=str)
SELECT upper(mode) || '_ICD', count(*) FROM coded WHERE icd9_code LIKE '%.0' GROUP BY mode;

-- @count rows without a code or a patient, left out
SELECT upper(mode) || '_ICD', count(*) FROM coded
WHERE icd9_code IS NULL OR subject_id IS NULL GROUP BY mode;

-- @warn rows with short codes, which may lack leading zeros
SELECT upper(mode) || '_ICD', count(*) FROM coded WHERE length(icd(icd9_code)) < 3 GROUP BY mode;

-- @events
SELECT mode, subject_id AS patient, hadm_id AS encounter, icd(icd9_code) AS code FROM coded;

-- @load D_ICD_PROCEDURES
-- @optional codes have the package's own names
CREATE TABLE procedure_titles (icd9_code VARCHAR, long_title VARCHAR);

-- @load D_ICD_DIAGNOSES
-- @optional codes have the package's own names
CREATE TABLE diagnosis_titles (icd9_code VARCHAR, long_title VARCHAR);

-- @describe
SELECT 'procedures' AS mode, icd(icd9_code) AS code, long_title AS description
FROM procedure_titles
UNION ALL SELECT 'diagnoses', icd(icd9_code), long_title FROM diagnosis_titles;
