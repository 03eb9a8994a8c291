"""Inner loops, and the numbering, ordering and choice that they need."""
