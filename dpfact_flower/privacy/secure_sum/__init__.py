"""Compute secure sums, which reveal only the sum of the sites' integer vectors to the server.

Each site adds its part of the noise to its vector, and masks the result. The masks cancel in the
sum (Bonawitz et al. 2017). The proof is in ``docs/explanation/secure-sums.md``.
"""
