"""Each reader turns the tables of one kind of EHR into a `Cohort`."""
