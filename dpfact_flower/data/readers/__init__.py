"""Readers, each of which turns the tables of one kind of EHR into a `Cohort`."""
