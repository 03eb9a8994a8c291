"""DPFact as people use it from Python: a scikit-learn estimator, and runs on data in memory.

`federated` (`federate`: sites in, `Run` out), `run` (what a run found, as values, DataFrames and
plots), `phenotyper` (`DPFactPhenotyper`), `inputs` (what a site may be given as).
"""
