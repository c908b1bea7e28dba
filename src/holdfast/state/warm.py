"""Compile or load every kernel before the first row comes.

Kernels name their signatures, so this is complete by construction: afterwards nothing is left to compile.
Machine code is cached on disk beside the sources (or in ``NUMBA_CACHE_DIR``), and a second start only loads
it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.state import (
    bloom,
    columns,
    combine,
    content,
    decimals,
    exact,
    fold,
    index,
    keys,
    moments,
    multimap,
    sketch,
)
from holdfast.state.kernel import REGISTRY

# Importing them registers their kernels.
_MODULES = (bloom, columns, combine, content, decimals, exact, fold, index, keys, moments, multimap, sketch)


def warm() -> None:
    for found in REGISTRY:
        found.compile()
    # Arrow looks for pandas at the first array: that takes as long as all kernels, and else comes in a recovery.
    pa.array(np.zeros(1, np.int64))
