/*
help = """
OMOP CDM 5.3 or 5.4: procedures x conditions, plus drug ingredients with --drugs.

SOURCE is a folder of .csv, .csv.gz or .parquet files, a DuckDB or SQLite file,
or a database such as postgresql://user@host/database. By default, the whole
CDM is one site. With --by, each care site becomes a site.
"""
modes = { procedures = 0, conditions = 0, drugs = 0 }
named = true

[options.by]
default = "none"
choices = ["none", "person", "visit"]
help = "Use the care site of the person or of the first visit; none: the whole CDM is one site."

[options.drugs]
default = false
help = "Add drugs as a feature mode."
*/

-- Codes are the identifiers of standard concepts, and the concepts' names describe them. The time
-- of an event is the day on which the event began. The encounter is the visit.

-- @load procedure_occurrence
CREATE TABLE procedures (
    person_id VARCHAR, procedure_concept_id VARCHAR, procedure_date DATE,
    visit_occurrence_id VARCHAR DEFAULT NULL);

-- @load condition_occurrence
CREATE TABLE conditions (
    person_id VARCHAR, condition_concept_id VARCHAR, condition_start_date DATE,
    visit_occurrence_id VARCHAR DEFAULT NULL);

-- @load drug_exposure
-- @when $drugs
CREATE TABLE drugs (
    person_id VARCHAR, drug_concept_id VARCHAR, drug_exposure_start_date DATE,
    visit_occurrence_id VARCHAR DEFAULT NULL);

CREATE VIEW occurrences (mode, source, patient, concept, day, visit) AS
SELECT 'procedures', 'procedure_occurrence', * FROM procedures
UNION ALL SELECT 'conditions', 'condition_occurrence', * FROM conditions
UNION ALL SELECT 'drugs', 'drug_exposure', * FROM drugs;

-- @count rows without a person, left out
SELECT source, count(*) FROM occurrences WHERE patient IS NULL GROUP BY source;

-- @count rows of concept 0 or none, left out
SELECT source, count(*) FROM occurrences WHERE coalesce(concept = '0', true) GROUP BY source;

CREATE TABLE used AS
SELECT DISTINCT mode, concept FROM occurrences WHERE concept <> '0' AND patient IS NOT NULL;

-- @count tables missing: codes stay without description
SELECT 'concept', 1 WHERE NOT list_contains($tables, 'concept');

-- @load concept
-- @when $drugs OR list_contains($tables, 'concept')
-- @where concept_id IN (SELECT concept FROM used) OR $drugs AND lower(concept_class_id) = 'ingredient'
CREATE TABLE concepts (concept_id VARCHAR, concept_name VARCHAR, concept_class_id VARCHAR);

-- @count codes that are not in it, which stay without description
SELECT 'concept', count(DISTINCT concept) FROM used
WHERE concept NOT IN (SELECT concept_id FROM concepts) AND list_contains($tables, 'concept');

-- Drugs are replaced by their ingredients according to concept_ancestor. Drugs without an
-- ingredient are kept unchanged.
CREATE VIEW ingredients AS
SELECT concept_id FROM concepts WHERE lower(concept_class_id) = 'ingredient';

-- @load concept_ancestor
-- @when $drugs
-- @where descendant_concept_id IN (SELECT concept FROM used) AND ancestor_concept_id IN (FROM ingredients)
-- @there ancestor_concept_id IN (SELECT concept_id FROM $schema.concept WHERE lower(concept_class_id) = 'ingredient')
CREATE TABLE ancestors (ancestor_concept_id VARCHAR, descendant_concept_id VARCHAR);

CREATE VIEW events AS
SELECT o.*, coalesce(ancestor_concept_id, concept) AS code
FROM occurrences o LEFT JOIN ancestors a ON mode = 'drugs' AND descendant_concept_id = concept
WHERE concept <> '0' AND patient IS NOT NULL;

-- @count rows whose drug has no ingredient, kept as drugs
SELECT source, count(*) FROM occurrences
WHERE mode = 'drugs' AND concept <> '0' AND patient IS NOT NULL
    AND concept NOT IN (SELECT descendant_concept_id FROM ancestors) GROUP BY source;

-- @events
SELECT mode, patient, visit AS encounter, day AS time, code FROM events;

-- @describe
SELECT mode, code, concept_name AS description FROM codes JOIN concepts ON concept_id = code;

-- @load person
CREATE TABLE persons (person_id VARCHAR, care_site_id VARCHAR DEFAULT NULL);

-- @load visit_occurrence
CREATE TABLE visits (
    visit_occurrence_id VARCHAR, person_id VARCHAR, visit_start_date DATE, visit_end_date DATE,
    care_site_id VARCHAR DEFAULT NULL, visit_concept_id VARCHAR DEFAULT NULL);

-- @load care_site
-- @when $by <> 'none'
CREATE TABLE care_sites (care_site_id VARCHAR, care_site_name VARCHAR);

UPDATE care_sites SET care_site_name = care_site_name || '-' || care_site_id WHERE care_site_name IN
    (SELECT care_site_name FROM care_sites GROUP BY ALL HAVING count(DISTINCT care_site_id) > 1);

CREATE VIEW own_sites AS
SELECT person_id, care_site_id FROM persons WHERE $by = 'person'
UNION ALL
SELECT person_id, first(care_site_id ORDER BY visit_start_date, visit_occurrence_id)
FROM visits WHERE care_site_id IS NOT NULL AND $by = 'visit' GROUP BY person_id;

-- @patients
SELECT person_id AS patient,
    min(if($by = 'none', $name, coalesce(care_site_name, o.care_site_id))) AS site
FROM persons LEFT JOIN own_sites o USING (person_id) LEFT JOIN care_sites c
    ON c.care_site_id = o.care_site_id
WHERE person_id IS NOT NULL GROUP BY person_id;

-- @count persons with events who are not in it, left out
SELECT 'person', count(*) FROM people ANTI JOIN patients USING (patient);

-- Hospital visits include visits that began in the emergency room. A death in hospital is a death
-- during such a visit, or on the day after it ended.
CREATE VIEW hospital_visits AS FROM visits WHERE visit_concept_id IN ('9201', '262');

-- @load death
-- @optional patients have no label died
CREATE TABLE deaths (person_id VARCHAR, death_date DATE);

CREATE VIEW deaths_in_hospital AS
SELECT DISTINCT person_id FROM deaths JOIN hospital_visits USING (person_id)
WHERE death_date BETWEEN visit_start_date AND visit_end_date + 1;

-- @label died
-- @when list_contains($tables, 'death') AND EXISTS (FROM hospital_visits)
SELECT person_id FROM deaths_in_hospital;

-- @count deaths outside any hospital visit, not labelled
SELECT 'death', (SELECT count(*) FROM deaths) -
    (SELECT count(*) FROM patients WHERE patient IN (FROM deaths_in_hospital));

-- @stays
SELECT person_id AS patient, visit_start_date::TIMESTAMP AS begun, visit_end_date::TIMESTAMP AS ended
FROM hospital_visits;
