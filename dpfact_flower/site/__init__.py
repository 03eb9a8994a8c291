"""Everything that a site does in a run. This package does not use Flower."""
