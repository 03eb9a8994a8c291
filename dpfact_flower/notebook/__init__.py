"""DPFact's Python interface for data in memory, with a scikit-learn estimator.

The module `federated` runs DPFact. The module `run` presents the results.
"""
