"""Measures, tables, plots and the report of a finished run."""
