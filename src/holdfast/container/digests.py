"""What owner and destination of a slice are compared by: checksums of what an epoch put out, and of what the slice is.

Applying is a pure function, so both must be the same to the last bit on both sides. What an epoch put out says nothing
where that is nothing; then there is the state itself, as of one committed epoch, whatever comes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

from holdfast.container.reads import Reading
from holdfast.container.slices import HostedStage
from holdfast.errors import EpochGone
from holdfast.operators.marked import Marked
from holdfast.state import digests

NOTHING = 0
"""No row on any port of any stage, and nothing counted."""


def put_out(stages: Iterable[HostedStage], number: int, epoch: int) -> int | None:
    """Of a slice of these stages: every port, rows that are taken back too, and what was counted (late rows, say). None
    if it cannot say so any more: a comparison is no reason for an epoch to fail."""
    try:
        return _put_out(stages, number, epoch)
    except EpochGone:
        return None


def _put_out(stages: Iterable[HostedStage], number: int, epoch: int) -> int:
    total = NOTHING
    for stage in sorted(stages, key=lambda one: one.plan.name):
        held = stage.held(number)
        with held.lock:
            found = {port: held.state.outputs(epoch, "changelog", port) for port in stage.operator.ports}
            counts = sorted(held.state.counts.items())
        for port, batch in found.items():
            if batch.num_rows:
                total = crc32(batch.serialize(), crc32(f"{stage.plan.name}.{port}".encode(), total)) or 1
        if counts:
            total = crc32(f"{stage.plan.name}: {counts}".encode(), total) or 1
    return total


def state(reading: Reading, stages: Sequence[HostedStage], number: int, epoch: int) -> int | None:
    """Of all tables of a slice of these stages, as of that epoch; None if it is not held any more.

    Of units of the state only the operator's own tables: where the log has a unit last is its owner's business.
    """
    found = []
    try:
        for stage in sorted(stages, key=lambda one: one.plan.name):
            operator = stage.operator
            own = operator.units_table if isinstance(operator, Marked) else len(operator.layouts)
            for table in range(own):
                total, start, last = 0, 0, False
                while not last:
                    header, rows = reading.part(stage.plan.name, table, number, 0, epoch, start)
                    total, start, last = total + digests.of_part(rows), header.stop, header.last
                found.append(total)
    except EpochGone:
        return None
    return digests.together(found)
