"""Secure sums of the sites' integer vectors. The server learns only the sum.

Each site adds a share of the noise and hides its vector under masks that cancel in the sum
(Bonawitz et al. 2017). All functions are pure: they use no Flower, no disk and no settings. The
guarantee and its proof are in ``docs/explanation/secure-sums.md``.
"""
