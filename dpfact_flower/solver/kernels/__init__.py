"""Inner loops of the solvers, and the number, order and sample of cells for these loops."""
