"""Whole runs: their config, and Flower run in one process, simulated or deployed."""
