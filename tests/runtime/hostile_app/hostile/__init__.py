"""A Flower App that a hospital must not run."""
