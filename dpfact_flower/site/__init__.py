"""A hospital's part of a run, without Flower: admission, computation, charges, files, replies."""
