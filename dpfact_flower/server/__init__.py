"""A server without Flower: rounds, quorum, checkpoints, and what replies do to the model."""
