"""What a site computes on its own data; knows nothing of Flower or privacy."""
