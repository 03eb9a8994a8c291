"""What server and sites say to each other, in how many bits, and in which of Flower's records."""
