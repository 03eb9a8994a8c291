"""Readers that turn the tables of an EHR into a `Cohort`, one for each kind of EHR."""
