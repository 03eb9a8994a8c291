"""Programs that test the package and its tests, and take minutes to hours.

`mutants` checks whether tests notice a changed token. `campaign` runs DPFact on a network that
fails or, with ``--real``, between real processes. `endurance` measures resource use over hours.
`follow` runs the commands in the docs. `packages` tests the wheel and the archive. ``make nightly``
runs these five. For help, run ``python -m laboratory.NAME --help``. `notebooks` stores the
notebooks' output. `flower_masks` counts the different masks that Flower's own secure sums can use.
"""
