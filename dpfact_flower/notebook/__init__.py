"""Python interface of DPFact: a scikit-learn estimator, and runs on data in memory.

The modules are `federated` (`federate`: sites of any accepted form in, `Run` out), `run` (a run's
results as values, DataFrames and plots) and `phenotyper` (`DPFactPhenotyper`).
"""
