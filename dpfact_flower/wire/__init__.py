"""The messages between server and sites: content, packed values and Flower's records."""
