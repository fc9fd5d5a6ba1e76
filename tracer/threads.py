"""How many threads numpy's matrix products may use in a command of our own."""

from __future__ import annotations

import os
import sys


def one_blas_thread() -> None:
    """One thread for OpenBLAS, unless the user asks for more. To be called before numpy is imported.

    The products of a comparison are small. Several threads wait for one another in a loop: on a machine that is busy
    with something else one product of a millisecond then takes a second.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
