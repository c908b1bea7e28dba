"""Named places where a drill may stop the process, as the design's kill points.

``HOLDFAST_FAULT="after-prepare@3"`` kills the process with SIGKILL when it passes ``after-prepare`` of epoch 3;
several are separated by commas. Without the variable a place costs one dictionary look-up. It exists so that a crash test is
a real crash of the real code, at a place that can be named.
"""

from __future__ import annotations

import os
import signal

PLACES = (
    "in-intake",
    "after-segments",
    "after-prepare",
    "mid-apply",
    "mid-sink",
    "after-sinks",
    "after-commit",
)


def _planned() -> frozenset[str]:
    return frozenset(part for part in os.environ.get("HOLDFAST_FAULT", "").split(",") if part)


_PLANNED = _planned()


def place(name: str, epoch: int) -> None:
    """Die here if a drill says so."""
    if _PLANNED and f"{name}@{epoch}" in _PLANNED:
        os.kill(os.getpid(), signal.SIGKILL)
