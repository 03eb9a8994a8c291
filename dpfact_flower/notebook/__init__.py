"""Run DPFact from Python, and read a run's results."""
