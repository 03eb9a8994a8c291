"""The tables of names that the package ships: how they are made."""
