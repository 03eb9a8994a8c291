"""Whole runs: their config, and Flower in one process, in simulation or in deployment."""
