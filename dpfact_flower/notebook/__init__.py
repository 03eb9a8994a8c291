"""Python interface of DPFact: a scikit-learn estimator, and runs on data in memory.

The modules are `federated` (`federate`: sites in, `Run` out), `run` (a run's results as values,
DataFrames and plots), `phenotyper` (`DPFactPhenotyper`) and `inputs` (accepted forms of a site).
"""
