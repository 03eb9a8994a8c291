"""A hospital's Flower-independent code: admission, computation, charges, files and replies."""
