"""The driver's part in loops: rows that an epoch puts out for the next one, on their way through its commit.

Loops are closed by sinks, and so have their rows when every stage has applied the epoch, again if another driver has to
finish it. What a sink of another kind would write, this one takes in for the stages that read the loop, as it is taken
in from stages below: sorted by slice, in segments that have the name of the next epoch. The commit names them, the
prepare of the next epoch does so again, and from there on they are rows like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.driver.options import Options
from holdfast.errors import PlanError, StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.records import Commit, Fence, Rounds, SegmentRef, Waiting
from holdfast.plan.loops import layout_of
from holdfast.wire.messages import Tag

if TYPE_CHECKING:
    from holdfast.spark.stream import JobPlan

Taken = dict[int, list[Tag]]
"""By the level that takes them."""
Place = Callable[[Fence, int, Sequence[Tag], list[bytes]], tuple[SegmentRef, ...]]


PARTITIONS = 100_000
"""Partitions of the intakes of a loop are numbered from here on, those of the next one from twice that on: a level of
the next epoch has further ones, and no segment of it may have the name of another."""


@dataclass
class Loops:
    """What goes round: what the last commit holds, and what there is of the epoch in flight."""

    layout: str = ""
    commit: Commit | None = None
    taken: dict[int, dict[str, Taken]] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        return self.commit.waiting if self.commit is not None else ()

    def take(self, epoch: int, loop: str, tags: Taken) -> None:
        """The commit of the epoch shall have these."""
        self.taken.setdefault(epoch, {})[loop] = tags

    def tags(self, epoch: int, level: int) -> tuple[Tag, ...]:
        """What has gone round into an epoch and is taken at that level, as tasks answered."""
        if self.commit is None or self.commit.fence.epoch != epoch - 1:
            return ()
        held, found = self.commit.attachments, list[Tag]()
        for ref in (ref for one in self.waiting if one.level == level for ref in one.segments):
            rows = None if ref.inline is None else held[ref.inline]
            # What is read of sources was counted when it came; this has been.
            found.append(Tag(replace(ref, inline=None, input_rows=0), rows))
        return tuple(found)

    def placed(self, fence: Fence, attachments: list[bytes], place: Place) -> tuple[Waiting, ...]:
        """What the commit of that fence says of rows for the next epoch; ``place`` brings them to where they stay."""
        after = replace(fence, epoch=fence.epoch + 1)
        return tuple(
            Waiting(loop, level, place(after, level, tags, attachments), self.layout)
            for loop, levels in sorted(self.taken.get(fence.epoch, {}).items())
            for level, tags in sorted(levels.items())
            if any(tag.segment.rows for tag in tags)
        )

    def committed(self, stored: Commit) -> None:
        self.commit = stored
        self.taken.clear()


def of(plan: JobPlan, slices: int, commit: Commit | None) -> Loops:
    """As the store left it."""
    return Loops(layout_of(plan, slices), commit)


def rounds_of(waiting: Sequence[Waiting]) -> Rounds:
    """How many rows wait in each loop."""
    found: dict[str, int] = {}
    for one in waiting:
        if one.rows:
            found[one.loop] = found.get(one.loop, 0) + one.rows
    return found


def bounds_of(plan: JobPlan) -> Rounds:
    """How often rows may go round the loops that are bounded."""
    return {sink.closes.name: sink.max_rounds for sink in plan.closing if sink.closes and sink.max_rounds is not None}


def refuse(plan: JobPlan, options: Options) -> None:
    """What loops cannot do, before anything is started."""
    if options.settle and not plan.closing:
        raise PlanError(
            "settle=True holds sources back until loops are dry, and the job has no loop.",
            safe="Nothing was started.",
            todo="Leave settle= out, or draw a loop: job.loop(…).",
        )
    if plan.closing and options.terms().checks is not None:
        raise PlanError(
            "A job with loops cannot run under safety=hf.Eventual(…) yet.",
            safe="Nothing was started.",
            todo="Use hf.Delta(), hf.Shards(), hf.Sync() or None.",
        )


def refuse_waiting(ledger: Ledger, plan: JobPlan, slices: int, job: str) -> None:
    """Rows that wait in loops are in terms of the stages that they were taken in for."""
    commit = ledger.last_committed()
    waiting = commit.waiting if commit is not None else ()
    layout, epoch = layout_of(plan, slices), commit.fence.epoch + 1 if commit is not None else 1
    other = sorted(
        one.loop
        for one in waiting
        if one.rows and one.layout != layout and ledger.get_prepare(epoch, one.level) is None
    )
    if other:
        raise StoreError(
            f"Job {job!r} has changed, and rows wait in its loop '{other[0]}' that were put out before that: they are "
            "in terms of the stages as they were.",
            safe="Nothing was changed.",
            todo="Start once more with the job as it was, with job.start(drain=True): that lets the loop run dry and "
            "takes in no more. Then change it.",
        )
