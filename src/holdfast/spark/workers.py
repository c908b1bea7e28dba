"""Spark's Python workers, which look for garbage after every task: among all the modules that were ever imported, for
20 ms, though a task of ours may take 5.

What is there after the first task of a kind is there for good. It is set aside, and later looks pass it over.
"""

from __future__ import annotations

import gc

_known: set[str] = set()


def set_aside(kind: str) -> None:
    """At the end of a task of ours: once for each kind, since each imports what the others do not."""
    if kind not in _known:
        _known.add(kind)
        gc.collect()
        gc.freeze()
