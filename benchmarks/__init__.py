"""Measure speed and memory, and compare them with other libraries and targets: ``make bench``.

Everything runs on one core. NumPy's BLAS and numba read these variables only when they are loaded,
so the variables are set before anything else is imported. Child processes inherit them.
"""

import os

for _name in ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
