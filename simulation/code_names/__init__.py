"""Make the tables of names that ship with the package."""
