"""One reader a kind of EHR: tables in, a `Cohort` out."""
