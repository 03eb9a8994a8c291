"""Whole runs: their configs, and Flower in one process, in a simulation or in a deployment."""
