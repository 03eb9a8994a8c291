"""Programs that test the package and its tests, and take minutes to hours.

`mutants` (do the tests notice a changed token?), `campaign` (runs on a network that fails or, with
``--real``, between real processes), `endurance` (does resource use grow over hours?), `follow`
(runs the commands in the docs) and `packages` (wheel and source archive). ``make nightly`` runs
them all. For help, run ``python -m laboratory.NAME --help``. `notebooks` stores the notebooks'
output. `flower_masks` counts the bits in which the masks of Flower's own secure sums differ.
"""
