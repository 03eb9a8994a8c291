"""The code that runs at a site. The package `site` does not use Flower."""
