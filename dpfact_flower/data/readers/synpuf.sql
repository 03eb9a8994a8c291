/*
help = """
CMS DE-SynPUF claims: one site per sample, or per --group of samples.

SOURCE is a folder of CMS's claim files, .csv or .csv.gz.
"""
modes = { procedures = 202, diagnoses = 316 }  # as in the paper

[options.claims]
default = "inpatient"
choices = ["inpatient", "outpatient"]
help = "Which claims to read."

[options.valid_procedures]
default = []
help = "File that lists valid ICD-9 procedures; about half of the values are not procedures."

[options.drop_last_patient]
default = false
help = "Leave out the last patient, who is incomplete in a file that was cut off between lines."

[options.group]
default = {}
help = "A site and its samples, such as north=1,2; default: one site per sample."
*/

-- This script reads CMS DE-SynPUF 2008-2010. Encounters are claims. A long claim has several rows,
-- called segments. If a later segment has blank dates, it gets the claim's dates. The time of an
-- event is the day on which the claim began. A patient in two samples is assigned to the sample
-- with the lower number.
--
-- Diagnoses come from ICD9_DGNS_CD_*. The admitting diagnosis is left out, because it is a reason
-- for admission, not a finding. CMS replaces suppressed rare codes with OTHER, which is kept as a
-- code. The procedures of outpatient claims come unchanged from HCPCS_CD_*. The CPT descriptions
-- are copyrighted, so only the codes are known.
--
-- The beneficiary files are not read, because they contain dates of death but no places of death.
-- Every person with a claim is a patient.

CREATE TABLE asked AS
SELECT unnest(map_keys($group)) AS site, unnest(map_values($group)) AS numbers;

-- @refuse need sites as SITE=1,2,3
SELECT '--group', count(*) FROM asked WHERE NOT regexp_full_match(numbers, '\d{1,6}(,\d{1,6})*');

CREATE TABLE groups AS
SELECT site, unnest(string_split(numbers, ','))::INTEGER::VARCHAR AS part FROM asked;

-- @refuse samples must be at one site each
SELECT '--group', count(*) - count(DISTINCT part) FROM groups;

-- @refuse need DE1_0_2008_to_2010_Inpatient_Claims_Sample_N.csv (or Outpatient) for each sample N
SELECT $source || ': lacks sample ' || part, 1 FROM groups
WHERE NOT list_contains($tables, 'de1_0_2008_to_2010_' || $claims || '_claims_sample_' || part);

-- The order of the lines shows which patient is last.
SET preserve_insertion_order = true;

-- @load DE1_0_2008_to_2010_Inpatient_Claims_Sample_*
-- @when $claims = 'inpatient' AND ($part IN (SELECT part FROM groups) OR NOT EXISTS (FROM groups))
CREATE TABLE inpatient (
    desynpuf_id VARCHAR, clm_id VARCHAR, clm_from_dt DATE, clm_admsn_dt DATE DEFAULT NULL,
    nch_bene_dschrg_dt DATE DEFAULT NULL, icd9_prcdr_cd VARCHAR[], icd9_dgns_cd VARCHAR[]);

-- @load DE1_0_2008_to_2010_Outpatient_Claims_Sample_*
-- @when $claims = 'outpatient' AND ($part IN (SELECT part FROM groups) OR NOT EXISTS (FROM groups))
CREATE TABLE outpatient (
    desynpuf_id VARCHAR, clm_id VARCHAR, clm_from_dt DATE, clm_admsn_dt DATE DEFAULT NULL,
    nch_bene_dschrg_dt DATE DEFAULT NULL, hcpcs_cd VARCHAR[], icd9_dgns_cd VARCHAR[]);

CREATE VIEW segments (line, patient, claim, day, begun, ended, procedures, diagnoses, part) AS
SELECT rowid, * FROM inpatient UNION ALL SELECT rowid, * FROM outpatient;

CREATE TABLE incomplete AS
SELECT part, arg_max(patient, line) AS patient FROM segments
WHERE $drop_last_patient GROUP BY part;

-- @count last patient left out, whose claims may be cut off
SELECT 'sample ' || part, count(*) FROM incomplete GROUP BY part;

CREATE TABLE claims AS
SELECT try_cast(regexp_extract(part, '^\d+') AS INTEGER) AS sample, patient, claim,
    min(day) OVER of_claim AS day, min(begun) OVER of_claim AS begun,
    min(ended) OVER of_claim AS ended, procedures, diagnoses
FROM segments ANTI JOIN incomplete USING (part, patient)
WHERE patient IS NOT NULL AND claim IS NOT NULL
WINDOW of_claim AS (PARTITION BY part, patient, claim);

DROP VIEW segments;

DROP TABLE inpatient;

DROP TABLE outpatient;

-- @patients
SELECT patient, coalesce(groups.site, 'sample-' || sample) AS site
FROM (SELECT patient, min(sample) AS sample FROM claims GROUP BY patient)
    LEFT JOIN groups ON part = sample::VARCHAR;

-- @stays
-- @when $claims = 'inpatient'
SELECT DISTINCT patient, begun::TIMESTAMP AS begun, ended::TIMESTAMP AS ended FROM claims;

-- The procedures of inpatient claims include diagnoses and other codes, left over from CMS's
-- synthesis. Codes that look like ICD-9-CM procedures without dots (three or four digits) are kept,
-- which drops a third of the values. Some diagnoses, such as 4280, have this form too. A list of
-- valid procedures would drop half of the values.
CREATE TABLE valid AS SELECT unnest($valid_procedures) AS code;

CREATE VIEW listed AS
SELECT mode, patient, encounter, time, code,
    mode = 'diagnoses' OR code IN (FROM valid) OR NOT EXISTS (FROM valid)
    AND ($claims = 'outpatient' OR regexp_full_match(code, '\d{3,4}')) AS is_valid
FROM (SELECT 'procedures' AS mode, patient, claim AS encounter, day AS time,
          unnest(procedures) AS code FROM claims
      UNION ALL SELECT 'diagnoses', patient, claim, day, unnest(diagnoses) FROM claims);

-- @count values
SELECT mode, count(*) FROM listed GROUP BY mode;

-- @count values that are not valid procedures, left out
SELECT mode, count(*) FROM listed WHERE NOT is_valid GROUP BY mode;

-- @events
SELECT mode, patient, encounter, time, code FROM listed WHERE is_valid;

-- Some codes are both procedures and diagnoses: 4019 is a lymphatic procedure, but here it means
-- hypertension. Such a code is described as a diagnosis if it is more frequent among diagnoses.
-- @names icd9cm
CREATE TABLE diagnosis_names (code VARCHAR, name VARCHAR);

CREATE VIEW uses AS
SELECT 'procedures' AS mode, code AS key FROM "events of procedures"
UNION ALL SELECT 'diagnoses', code FROM "events of diagnoses";

-- @describe
SELECT mode, code, name || ' (a diagnosis among the procedures)' AS description
FROM codes JOIN diagnosis_names USING (code)
WHERE mode = 'procedures' AND $claims = 'inpatient' AND key IN (
    SELECT key FROM uses GROUP BY key
    HAVING count(*) FILTER (mode = 'diagnoses') > count(*) FILTER (mode = 'procedures'));
