"""The code that runs at a site. This package does not use Flower."""
