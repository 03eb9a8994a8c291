"""DPFact's Python interface: a scikit-learn estimator, and runs on data in memory.

`federated` runs DPFact on sites in memory. `run` presents the results as values, DataFrames and
plots.
"""
