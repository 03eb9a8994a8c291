"""What measures the package and its tests, and is no part of either; it takes minutes to hours.

`mutants` (do the tests notice a changed token?), `fuzz` (damaged files and hostile requests),
`campaign` (runs on a network that fails), `real_campaign` (between real processes), `endurance`
(does anything grow in hours?), `follow` (the docs, typed word by word) and `packages` (wheel and
source archive). ``make nightly`` runs them all; each is ``python -m laboratory.NAME --help``. And
`flower_masks`: in how many bits the masks of Flower's own secure sums differ.
"""
