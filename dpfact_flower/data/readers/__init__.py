"""Read EHR tables into a `Cohort`. Each kind of EHR has its own SQL script or module."""
