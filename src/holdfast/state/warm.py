"""Compile or load every kernel before the first row comes.

Kernels name their signatures, so this is complete by construction: afterwards nothing is left to compile.
Machine code is cached on disk beside the sources (or in ``NUMBA_CACHE_DIR``), and a second start only loads
it.
"""

from __future__ import annotations

from holdfast.state import bloom, columns, combine, content, decimals, fold, index, keys, multimap, sketch
from holdfast.state.kernel import REGISTRY

# Importing them registers their kernels.
_MODULES = (bloom, columns, combine, content, decimals, fold, index, keys, multimap, sketch)


def warm() -> None:
    for found in REGISTRY:
        found.compile()
