"""Read EHR tables into a `Cohort`, with an SQL script or module for each kind of EHR."""
