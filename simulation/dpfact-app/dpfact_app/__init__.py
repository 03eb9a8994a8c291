"""A Flower App around the installed `dpfact_flower`."""
