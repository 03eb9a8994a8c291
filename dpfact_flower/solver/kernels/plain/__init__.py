"""Loops as one writes them down; the twins of those in vector instructions."""
