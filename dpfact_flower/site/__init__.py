"""The site's part of a run. This package does not use Flower."""
