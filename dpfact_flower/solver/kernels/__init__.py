"""Inner loops, and the numbering, ordering and sampling of cells for them."""
