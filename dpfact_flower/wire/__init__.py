"""The messages between server and sites: content, packed values, Flower's records."""
