"""Sums of the sites' integer vectors of which the server learns only the sum.

Each site adds a share of the noise and hides its vector under masks that cancel in the sum
(Bonawitz et al. 2017). `keys` has the participants and the question, `masks` makes and removes
keystreams, `shamir` shares a seed. `site` and `server` are the two halves of a sum, and `noise`
bounds the noise of the sum. Pure functions: no Flower, no disk, no settings. The guarantee and its
proof are in ``docs/explanation/secure-sums.md``.
"""
