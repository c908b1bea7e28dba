"""What the driver does in the store: one method for each instruction, found by its type. Nothing is decided here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from holdfast import faults
from holdfast.driver.clock import Clock
from holdfast.driver.history import History
from holdfast.driver.loops import Loops, rounds_of
from holdfast.driver.sink_counters import SinkCounters
from holdfast.driver.sizes import Sizes
from holdfast.driver.units import Written
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import FunctionError
from holdfast.invariants import some
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.records import Commit, Fence, Manifest, Prepare, SegmentRef, Taken
from holdfast.log.records import Routing as RoutingFile
from holdfast.log.segment import segment_name
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.operators.stage import StagePlan
from holdfast.spark.checkpoint import SparkNotes
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Tag

INLINE_BYTES = 16 << 20
"""Of rows inside one prepare."""
WRITERS = 8


@dataclass
class Feedback:
    """What functions are to see in the next epoch: what the last commit holds."""

    drawn: tuple[str, ...]
    """What the job feeds back, by name."""
    held: Mapping[str, bytes] = field(default_factory=dict)
    """By the last commit."""
    taken: dict[int, dict[str, bytes]] = field(default_factory=dict)
    """Of the epoch in flight, as far as it was collected."""

    def for_next(self) -> dict[str, bytes]:
        """With what is drawn and has no rows: functions find none then, and a name that is wrong they do not find."""
        return dict.fromkeys(self.drawn, b"") | dict(self.held)

    def committed(self, held: Mapping[str, bytes]) -> None:
        self.held = held
        self.taken.clear()


class StoreHandlers:
    def __init__(
        self,
        ledger: Ledger,
        incarnation: int,
        history: History,
        notes: SparkNotes,
        sinks: SinkCounters,
        time: Timekeeper,
        sizes: Sizes,
        stages: Sequence[StagePlan],
        feedback: Feedback,
        written: Written,
        loops: Loops | None = None,
    ) -> None:
        self.ledger = ledger
        self.ledger_lock = threading.RLock()
        self.notes = notes
        self.incarnation = incarnation
        self.sinks = sinks
        self.time = time
        self.clock = Clock(time.clock)
        self._janitor = Janitor(ledger.store, ledger.section_name, incarnation, self.notes.settle)
        self._tidying = threading.Lock()
        self._cut = 0  # where the master has last allowed to cut the log
        self._history = history
        self._sizes = sizes
        self._prepares: dict[int, Prepare] = {}  # of the epoch in flight, by level
        self._calling = _calling(stages)
        self.feedback = feedback
        self.loops = loops or Loops()
        self.over_source: frozenset[str] = frozenset()
        """The sinks straight over the source, which have their rows with the batch and not with the epoch."""
        self.written = written
        self._sinks_begun = 0  # the newest epoch of which a sink may have something
        self.left_out: tuple[str, ...] = ()
        """Stages that go along without rows."""
        self.resets: tuple[str, ...] = ()
        self.cuts: tuple[str, ...] = ()
        """Stages that the next epoch empties, or cuts down, before its rows."""

    def follow(
        self,
        stages: Sequence[StagePlan],
        sinks: tuple[str, ...],
        feeding: tuple[str, ...],
        splits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """The job has these stages, sinks and feedbacks from the next epoch on; ``splits`` are stages that go on from
        where others are."""
        self.time.follow(stages, splits)
        self.sinks.drawn = sinks
        self.feedback.drawn = feeding
        self._calling = _calling(stages)
        there = {stage.name for stage in stages}
        self.resets, self.cuts = (tuple(filter(there.__contains__, names)) for names in (self.resets, self.cuts))

    # --- routing, prepare, commit -------------------------------------------------------------------------

    @handler
    def store_routing(self, instruction: do.StoreRouting) -> ev.RoutingStored:
        routing = instruction.routing
        with self.ledger_lock:
            self.ledger.put_routing(RoutingFile(routing.version, tuple(owner or "" for owner in routing.table)))
        return ev.RoutingStored(instruction.id)

    @handler
    def store_prepare(self, instruction: do.StorePrepare) -> ev.PrepareStored:
        attachments: list[bytes] = []
        segments = self.segments(instruction.fence, instruction.level, instruction.tags, attachments)
        epoch, level = instruction.fence.epoch, instruction.level
        if level == 1:
            clock, resets, cuts = self._clock_now(), self.resets, self.cuts
        else:  # an epoch has one clock
            first = self.prepare_of(epoch, 1)
            clock, resets, cuts = first.clock, first.resets, first.cuts
        seen = (tag.times for tag in instruction.tags)
        times, before, after = self.time.advance(level, seen, lambda stage: self._sizes.opened(stage, epoch))
        ours = Prepare(
            fence=instruction.fence,
            level=level,
            ranges=instruction.ranges,
            segments=segments,
            clock=clock,
            times=times,
            watermark_before=before,
            watermark_after=after,
            routing=instruction.routing,
            sinks=self.sinks.moved_on(),
            left_out=self.left_out,
            resets=resets,
            cuts=cuts,
            feedback=self._fed(epoch, level),
            attachments=tuple(attachments),
        )
        with self.ledger_lock:
            stored = self.ledger.put_prepare(ours)
        self._prepares[stored.level] = stored
        self.time.take(stored)
        if level == 1:
            self.clock.take(stored.clock)
        faults.place("driver", "after-prepare", stored.fence.epoch)
        content = ev.Prepared(stored.level, stored.fence, stored.ranges, self.given(stored))
        return ev.PrepareStored(instruction.id, content)

    def given(self, prepare: Prepare) -> tuple[str, ...]:
        """The sinks over stages that the epoch goes to. Up to format 3 those over the source got epochs too."""
        given = self.sinks.given(prepare)
        return given if prepare.batch is None else tuple(name for name in given if name not in self.over_source)

    def _clock_now(self) -> int:
        reading = self.clock.read()
        if reading.warning is not None:
            self._history.note("warning", reading.warning)
        return reading.clock

    def _fed(self, epoch: int, level: int) -> Mapping[str, bytes]:
        """What functions see in the epoch: it is one for all levels. One without functions does without."""
        if level == 1:
            return self.feedback.for_next()
        return self.prepare_of(epoch, 1).feedback if level in self._calling else {}

    def segments(
        self, fence: Fence, level: int, tags: Sequence[Tag], attachments: list[bytes]
    ) -> tuple[SegmentRef, ...]:
        """Rows that came inside a tag stay inside the prepare, or the block, as long as they are few in all: whoever
        applies the epoch is sent the prepare. What is more goes into segments of their own."""
        apart: list[tuple[str, bytes]] = []
        found = placed(fence, level, tags, attachments, apart)
        if apart:  # each is synced: one after the other is slow
            with ThreadPoolExecutor(WRITERS, "holdfast-segments") as pool:
                list(pool.map(lambda one: self.ledger.section.write(one[0], [one[1]]), apart))
        return found

    def prepare_of(self, epoch: int, level: int) -> Prepare:
        known = self._prepares.get(level)
        if known is None or known.fence.epoch != epoch:
            with self.ledger_lock:
                known = self.ledger.get_prepare(epoch, level)
            known = some(known, f"epoch {epoch}.{level} is applied but not prepared")
            self._prepares[level] = known
        return known

    def feed_back(self, epoch: int, name: str, rows: bytes) -> None:
        """The commit of the epoch shall have these."""
        self.feedback.taken.setdefault(epoch, {})[name] = rows

    @handler
    def store_commit(self, instruction: do.StoreCommit) -> ev.CommitStored:
        epoch = instruction.fence.epoch
        faults.place("driver", "after-sinks", epoch)
        with self.ledger_lock:
            prepare = self.prepare_of(epoch, 1)
            left = self.sinks.left_by(prepare, instruction.skipped)
            fed = self.feedback.taken.get(epoch, {})
            marks, attached = self.written.named(epoch, instruction.owners)
            attachments = [*attached]
            waiting = self.loops.placed(instruction.fence, attachments, self.segments)
            commit = Commit(
                instruction.fence,
                instruction.ranges,
                *left,
                fed,
                footprints=marks,
                attachments=tuple(attachments),
                waiting=waiting,
            )
            stored = self.ledger.put_commit(commit)
        faults.place("driver", "after-commit", epoch)
        self.resets, self.cuts = yet_to_turn(prepare)
        self.sinks.counters = dict(prepare.sinks if stored.sinks is None else stored.sinks)
        self.sinks.unsure, self.sinks.dropped = dict(stored.dropped), frozenset()  # they were dropped with this one
        self.feedback.committed(stored.feedback)
        self.written.committed(epoch, stored.footprints)
        self.loops.committed(stored)
        return ev.CommitStored(instruction.id, stored.fence, stored.ranges, rounds_of(stored.waiting))

    # --- marks and notes ----------------------------------------------------------------------------------

    def leave_out(self, epoch: int, stages: Collection[str], text: str) -> bool:
        """Go on with the epoch, in which one of these stages has raised, without them; False: its sinks may have begun,
        so it is what it is."""
        with self.ledger_lock:
            if self.ledger.applied(epoch) or self.ledger.get_commit(epoch) is not None:
                return False
            note = self.ledger.leave_out(Fence(self.incarnation, epoch, 0), {*stages, *self.left_out}, text)
        self._prepares = {level: replace(one, left_out=note.stages) for level, one in self._prepares.items()}
        self.left_out = note.stages
        return True

    def mark_failed(self, epoch: int, error: FunctionError) -> None:
        with self.ledger_lock:
            self.ledger.mark_failed(Fence(self.incarnation, epoch, 0), error.what)

    def before_sinks(self, epoch: int) -> None:
        """From here on the epoch may be seen: nobody may finish it with other functions any more.

        Only functions can be mended, so only a job that has some pays for the mark.
        """
        if self._calling and self._sinks_begun != epoch:
            with self.ledger_lock:
                self.ledger.seal(Fence(self.incarnation, epoch, 0), self.prepare_of(epoch, 1).left_out)
            self._sinks_begun = epoch

    def note_taken(self, fence: Fence, sink: str) -> None:
        """A start after this one must not give the epoch to this sink again, though others still wait for it."""
        with self.ledger_lock:
            self.ledger.put_taken(Taken(fence, sink))

    # --- checkpoints and the cut of the log ---------------------------------------------------------------

    @handler
    def store_manifest(self, instruction: do.StoreManifest) -> ev.ManifestStored:
        packs = [str(pack.file) for pack in instruction.packs]
        where = {number: at for at, pack in enumerate(instruction.packs) for number in pack.slices}
        with self.ledger_lock:
            graphs, prepare = self.ledger.graphs(), self.ledger.get_prepare(instruction.epoch, 1)
            lived = prepare is not None and any(
                one.live or one.kept for one in graphs.later
            )  # else versions of before read it too
            manifest = Manifest(
                instruction.epoch,
                instruction.fence,
                tuple(packs),
                tuple(where[number] for number in range(len(where))),
                verified_by="another container or the driver",
                graph=graphs.version_of(prepare) if lived and prepare is not None else None,
            )
            self.ledger.put_manifest(manifest)
        self._history.note("checkpoint", f"epoch {instruction.epoch}, {len(packs)} packs, verified")
        return ev.ManifestStored(instruction.id)

    @handler
    def cut_log(self, instruction: do.CutLog) -> None:
        self._cut = max(self._cut, instruction.epoch)
        self.tidy()

    def manifests(self) -> list[Manifest]:
        with self.ledger_lock:
            return self.ledger.manifests(self._history.corrupt)

    def tidy(self) -> None:
        """Delete what nobody needs any more; what is left over when its time is up goes the next time."""
        with self._tidying:
            self._janitor.round(self._cut)

    def undisturbed(self) -> contextlib.AbstractContextManager[object]:
        """While this lasts nothing goes from the store."""
        return self._tidying

    def newest_owner(self) -> int:
        with self.ledger_lock:
            newest = self.ledger.newest_owner()
        return newest.incarnation if newest is not None else 0


def _calling(stages: Sequence[StagePlan]) -> frozenset[int]:
    """The levels that have functions of users."""
    return frozenset(stage.level for stage in stages if stage.operator.calls_users)


def yet_to_turn(prepare: Prepare) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the stages that an epoch would have emptied or cut down, those that it went along without: they still have it
    before them."""
    resets, cuts = (tuple(filter(prepare.left_out.__contains__, names)) for names in (prepare.resets, prepare.cuts))
    return resets, cuts


def placed(
    fence: Fence,
    level: int,
    tags: Sequence[Tag],
    attachments: list[bytes],
    apart: list[tuple[str, bytes]],
    room: int = INLINE_BYTES,
) -> tuple[SegmentRef, ...]:
    """The segments of the tags as a prepare or a block names them: rows that came in a tag are attached as long as
    there is room, and get a file of their own (``apart``) when there is none."""
    found = []
    for tag in tags:
        segment = tag.segment
        if not segment.rows:
            continue
        if tag.rows is not None and len(tag.rows) <= room:
            segment = replace(segment, inline=len(attachments))
            attachments.append(tag.rows)
            room -= len(tag.rows)
        elif tag.rows is not None:
            name = segment_name(fence, level, segment.partition, segment.task)
            segment = replace(segment, name=name)
            apart.append((name, tag.rows))
        found.append(segment)
    return tuple(found)
