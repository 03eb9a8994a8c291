"""The solvers' inner loops in vector instructions, and the order in which they visit cells."""
