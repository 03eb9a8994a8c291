"""A server without Flower: rounds, quorum, checkpoints, and updates of the model from replies."""
