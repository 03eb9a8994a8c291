"""The part of the server that does not depend on Flower: rounds, checkpoints and update rules."""
