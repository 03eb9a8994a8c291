"""Wheel and source archive, tried in empty environments: `make packages`."""
