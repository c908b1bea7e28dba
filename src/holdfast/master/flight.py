"""The epoch in flight: what is known of it, and what must hold before each step.

``check_instructions`` is the design's order of steps, written down a second time, apart from the code that chooses
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.invariants import invariant, some
from holdfast.log.records import Ranges
from holdfast.master.events import Prepared, Started
from holdfast.master.instructions import Apply, Instruction, RunIntake, RunSink, StoreCommit
from holdfast.master.progress import Progress


@dataclass
class Flight:
    """The epoch after the committed one, since it was first wanted (or a restart found it prepared)."""

    ranges: Ranges
    prepared: list[Prepared] = field(default_factory=list)
    waiting: bool = False
    """Somebody wants it. Else nothing new begins, though stores are still awaited."""
    step: Instruction | None = None
    """The one intake, prepare or commit under way."""
    sinks_running: dict[str, Instruction] = field(default_factory=dict)
    sinks_done: set[str] = field(default_factory=set)
    sink_failure: Exception | None = None
    """A sink raised this. Those beside it end first: what they have done need not be done again."""
    stirred: set[str] = field(default_factory=set)
    """Stages that put out rows, as far as slices have applied it."""
    losses: int = 0
    """Containers lost since it was wanted: an epoch that kills its containers must not do so for ever."""
    failure: Exception | None = None
    """Applying raised this; the epoch is being taken back on every slice."""

    def sinks(self, drawn: tuple[str, ...]) -> tuple[str, ...]:
        """Who gets the epoch: whom its prepare names, in the order in which the job draws them."""
        named = self.prepared[0].sinks if self.prepared else None
        if named is None or named == drawn:
            return drawn
        known, still = set(named), set(drawn)
        return (*(sink for sink in drawn if sink in known), *(sink for sink in named if sink not in still))

    def silent(self, job: Started) -> set[str]:
        """The sinks that get no row of it, once all slices have applied it, and are not called.

        One that another driver has prepared may have been given to all sinks by that, and to each with a number.
        """
        if not self.prepared or self.prepared[0].fence.incarnation != job.incarnation:
            return set(job.sinks_left_out)
        read = job.sinks_read.items()
        return {sink for sink, stages in read if not self.stirred.intersection(stages)} | job.sinks_left_out

    def sinks_left(self, job: Started) -> list[str]:
        over = self.sinks_done | self.silent(job)
        return [sink for sink in self.sinks(job.sinks) if sink not in over]


def check_instructions(
    instructions: Iterable[Instruction],
    *,
    flight: Flight | None,
    progress: Progress,
    committed: int,
    job: Started,
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
            case RunSink(sink=sink):
                flight = some(flight, "a sink of no epoch")
                invariant(progress.reached(progress.at(committed + 1)), "a sink before every slice applied")
                waits_for = job.sinks_after.get(sink)
                invariant(waits_for not in flight.sinks_left(job), "a sink before the one that it waits for")
            case StoreCommit(skipped=skipped):
                flight = some(flight, "a commit of no epoch")
                invariant(not flight.sinks_left(job), "a commit before every sink is done")
                invariant(not flight.sinks_done.intersection(skipped), "a sink that was called is not passed over")
