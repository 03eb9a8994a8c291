"""DPFact's Python interface for data in memory, with a scikit-learn estimator."""
