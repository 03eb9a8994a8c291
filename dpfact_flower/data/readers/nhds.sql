/*
help = """
National Hospital Discharge Survey 2010: one row per discharge, no newborns.

SOURCE is NHDS10.PU.txt, plain or compressed as .bz2 or .gz.
"""
modes = { procedures = 202, diagnoses = 316 }  # as in the paper
window = "encounter"
row_unit = "discharge"
source = "lines"

[options.by]
default = "region"
choices = ["region", "beds", "ownership"]
help = "How to form sites; each region is split into hospitals under 300 beds and larger ones."
*/

-- The script reads the public-use file of CDC's NCHS. Each line has fixed columns: newborn or not,
-- discharge status, the hospital's region, beds and ownership, and up to 15 diagnoses and 8
-- procedures (ICD-9-CM without dots, padded with hyphens). There are no patient identifiers, so a
-- patient with two discharges has two rows, and the noise of patient mode protects one discharge.
-- The data are for statistical use only. Nobody may try to identify a patient or a hospital.

-- @load lines
CREATE TABLE lines (number VARCHAR, line VARCHAR);

-- @refuse need lines of NHDS's public-use file of 2010
SELECT $source, if(count(*) = 0, 1, count(*) FILTER (NOT coalesce(regexp_matches(line,
    '^10[12][\d ]{14}[1-4][1-5][1-3][\d ]{7}[\dVE -]{107}'), false)))
FROM lines;

-- @count discharges
SELECT $file, count(*) FROM lines;

-- @count discharges of newborns, left out
SELECT $file, count(*) FROM lines WHERE line[3] = '1';

DELETE FROM lines WHERE line[3] = '1';

-- @count discharges whose outcome was not stated, counted as alive
SELECT $file, count(*) FROM lines WHERE line[12] = '9';

-- @patients
SELECT number AS patient,
    CASE $by WHEN 'region' THEN ['northeast', 'midwest', 'south', 'west'][line[18]::INTEGER]
        || if(line[19] < '4', '-under-300-beds', '-300-beds-or-more')
    WHEN 'beds' THEN
        ['6-to-99', '100-to-199', '200-to-299', '300-to-499', '500-or-more'][line[19]::INTEGER]
        || '-beds'
    ELSE ['proprietary', 'government', 'nonprofit'][line[20]::INTEGER] END AS site
FROM lines;

-- @label died
SELECT number FROM lines WHERE line[12] = '6';

CREATE MACRO field(line, first, width, place) AS
    nullif(trim(replace(substr(line, first + width * place, width), '-', '')), '');

-- @events
SELECT 'procedures' AS mode, number AS patient, number AS encounter,
    unnest([field(line, 103, 4, place) FOR place IN range(8)]) AS code FROM lines
UNION ALL
SELECT 'diagnoses', number, number,
    unnest([field(line, 28, 5, place) FOR place IN range(15)]) FROM lines;
