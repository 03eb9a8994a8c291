"""Federated, differentially private computational phenotyping with Flower."""

__version__ = "0.1.0"
