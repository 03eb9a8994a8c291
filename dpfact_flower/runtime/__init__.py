"""Run DPFact with Flower: in one process, in a simulation or in a deployment."""
