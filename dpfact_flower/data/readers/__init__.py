"""One reader per kind of EHR: tables in, a `Cohort` out."""
