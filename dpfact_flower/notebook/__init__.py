"""DPFact's Python interface: a scikit-learn estimator, and runs on data in memory.

`federated` runs DPFact on sites in memory. `run` presents results as values, tables and plots.
"""
