"""A hospital without Flower: what it admits, computes, charges, keeps and answers."""
