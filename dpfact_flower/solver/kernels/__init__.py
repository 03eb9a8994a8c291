"""Inner loops of the solvers in vector instructions, and the order in which they visit cells."""
