"""Inner loops of the solvers, and the numbering, order and sampling of cells for the loops."""
