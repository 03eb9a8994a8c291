"""The solvers' vectorised inner loops, and the order in which psgd visits cells."""
