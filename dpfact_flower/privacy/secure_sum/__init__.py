"""Sums of the sites' integer vectors, of which the server learns nothing but the sum.

Each site adds a share of the noise and covers its vector with masks that cancel in the sum
(Bonawitz et al. 2017). `keys` says who takes part and what a sum is asked for, `masks` makes and
removes keystreams, `shamir` shares a seed. `site` and `server` are the two halves of a sum, `noise`
says what the noise is worth. No Flower, no disk and no settings: values in, values out. What is
proven, and against whom: ``docs/explanation/secure-sums.md``.
"""
