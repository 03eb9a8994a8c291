"""The messages between server and sites: their content, packed values and Flower's records."""
