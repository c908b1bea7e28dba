"""The epoch in flight: what is known of it, which batch it may be, and what must hold before each step.

``refuse`` is the design's "Begin": a batch is either the one in flight, or the successor of the last
committed one, or refused, and then nothing is written. ``check_instructions`` is the design's order of steps,
written down a second time, apart from the code that chooses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.invariants import invariant, some
from holdfast.master.events import Batch, Prepared
from holdfast.master.instructions import Apply, Instruction, Refusal, RefuseBatch, RunIntake, RunSink, StoreCommit
from holdfast.master.progress import Progress


@dataclass
class Flight:
    """The epoch after the committed one, from its first offer (or a restart that found it prepared) on."""

    batch: Batch
    prepared: list[Prepared] = field(default_factory=list)
    waiting: bool = False
    """Spark is inside ``foreachBatch``. Without it nothing new begins, though stores are still awaited."""
    step: Instruction | None = None
    """The one intake, prepare, sink or commit under way."""
    sinks_done: set[str] = field(default_factory=set)
    losses: int = 0
    """Containers lost since the offer: an epoch that kills its containers must not do so for ever."""
    failure: Exception | None = None
    """Applying raised this; the epoch is being taken back on every slice."""

    def sinks(self, drawn: tuple[str, ...]) -> tuple[str, ...]:
        """Who gets the epoch: whom its prepare names, in the order in which the job draws them."""
        named = self.prepared[0].sinks if self.prepared else None
        if named is None:
            return drawn
        return (*(sink for sink in drawn if sink in named), *(sink for sink in named if sink not in drawn))


def refuse(batch: Batch, flight: Flight | None, committed: int, last: Batch | None) -> RefuseBatch | None:
    """Why this batch is neither the one in flight nor the successor of the last committed one."""
    if flight and (flight.prepared or flight.waiting):
        known, prepared = flight.batch, True
        expected = (known.batch_id, known.tick)
    elif last is not None:
        known, prepared = last, False
        expected = (last.batch_id, last.tick + 1) if batch.tick else (last.batch_id + 1, 0)
    elif (batch.batch_id, batch.tick) == (0, 0):  # the first one ever: of any query, but from its beginning
        return None
    else:
        return RefuseBatch(batch, Refusal.GAP, committed, None, False)
    if batch.query_id != known.query_id:
        reason = Refusal.OTHER_QUERY
    elif batch.batch_id == known.batch_id and batch.offsets != known.offsets:
        reason = Refusal.OTHER_OFFSETS
    elif (batch.batch_id, batch.tick) != expected:
        reason = Refusal.GAP
    else:
        return None
    return RefuseBatch(batch, reason, committed, known, prepared)


def check_instructions(
    instructions: Iterable[Instruction],
    *,
    flight: Flight | None,
    progress: Progress,
    committed: int,
    sinks: tuple[str, ...],
) -> None:
    prepared = len(flight.prepared) if flight else 0
    invariant(progress.furthest <= progress.at(committed, prepared), "a slice applied what was not prepared")
    for instruction in instructions:
        match instruction:
            case Apply(level=level, fence=fence):
                invariant(fence.epoch == committed + 1, "apply of another epoch than the one in flight")
                invariant(level <= prepared, "apply before prepare")
            case RunIntake(level=level):
                invariant(level == 1 or progress.reached(progress.at(committed, level - 1)), "intake too early")
            case RunSink():
                invariant(progress.reached(progress.at(committed + 1)), "a sink before every slice applied")
            case StoreCommit():
                flight = some(flight, "a commit of no epoch")
                invariant(flight.sinks_done >= set(flight.sinks(sinks)), "a commit before every sink is done")
