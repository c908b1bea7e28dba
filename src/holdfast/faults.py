"""Named places where a drill may kill the process: the design's kill points.

``HOLDFAST_FAULTS`` names a folder; a file in it called ``container@mid-apply@4`` is the death, by SIGKILL, of the first
container that passes ``mid-apply`` of epoch 4. Whoever manages to remove the file dies, so each is died once, by one
process, also over restarts. Without the variable a place costs nothing. It exists so that a crash test is a real
crash of the real code, at a place that has a name.
"""

from __future__ import annotations

import os
import signal

PLACES = (
    *("in-intake", "after-segments", "after-block"),
    *("after-prepare", "mid-apply", "mid-sink", "after-sinks", "after-commit"),
)
# Where a job has sinks straight over its source.
OVER_SOURCE = ("after-begun", "after-source-sink")
# Where a stage's rows are a stream for other jobs.
NAMED = ("before-stream-block", "after-stream-block")
# Places of what runs beside the epochs: copies of state, slices that come and go.
MOVING = ("mid-copy", "mid-activate", "mid-demote")
RING = ("mid-save", "mid-branch")

_FOLDER = os.environ.get("HOLDFAST_FAULTS")


def place(role: str, name: str, epoch: int) -> None:
    """Die here if a drill says so. ``role`` is driver, container or task."""
    if _FOLDER is None:
        return
    try:
        os.unlink(f"{_FOLDER}/{role}@{name}@{epoch}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
