"""A job in small: a log of prepares and commits, and containers that hold slices of it. No time, no network.

Applying is a checksum of what a slice had and what it gets, so a row that is applied twice, never, or in another order
shows. The oracle folds the stored prepares and knows nothing else. The simulator's containers and those of the
master's own property tests are these.

What a real container refuses with an error is the same error here. What no master may ever ask for is an assertion: a
real container would also say no, but then the master would go on as if a disk had failed, and its bug would pass for
bad luck.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import EpochGone, StoreError
from holdfast.invariants import Impossible, invariant
from holdfast.log.records import FEED, Batch, Fence, Range, Ranges, SegmentRef
from holdfast.master.events import (
    Activated,
    Answer,
    Applied,
    CheckpointWritten,
    CommitStored,
    Demoted,
    DigestsTaken,
    Dropped,
    Pack,
    PacksVerified,
    Prepared,
    PrepareStored,
    Restored,
    Undone,
)
from holdfast.master.feed import (
    BatchBegun,
    BeginBatch,
    BlockFound,
    BlockStored,
    FeedStarted,
    FindBlock,
    FinishBatch,
    RunSourceSink,
    StoreBlock,
)
from holdfast.master.instructions import (
    Activate,
    Apply,
    Demote,
    DropCopies,
    Forget,
    Restore,
    SendCopies,
    StoreCommit,
    StorePrepare,
    TakeDigests,
    ToContainer,
    Undo,
    VerifyPacks,
    WriteCheckpoint,
)
from holdfast.wire.messages import Tag

QUERY = "query"


def spark_batch(number: int) -> Batch:
    """What Spark offers as its batch of that number, as often as it has to."""
    return Batch(QUERY, number, f"rows of {number}")


def applied(state: int, slice_: int, rows: object) -> int:
    return zlib.crc32(repr((state, slice_, rows)).encode())


@dataclass
class Store:
    """What outlives every process: put-if-absent, checkpoints, what sinks have taken, and Spark's own checkpoint."""

    levels: int
    slices: int
    sinks: tuple[str, ...]
    owner: int = 0
    hosting: int = 0
    """The driver that a container is being started for."""
    prepares: dict[tuple[int, int], tuple[Prepared, object]] = field(default_factory=dict)
    commits: dict[int, tuple[Fence, Ranges]] = field(default_factory=dict)
    manifests: dict[int, dict[int, object]] = field(default_factory=dict)
    """Epoch of a checkpoint → slice → the pack it is in."""
    cut: int = 0
    """Rows of epochs up to here are gone."""
    taken: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """sink, epoch → its rows, slice by slice."""
    notes: set[tuple[str, int]] = field(default_factory=set)
    """Sinks that are known to have an epoch."""
    source_sinks: tuple[str, ...] = ()
    prefetch: int = 0
    blocks: dict[int, tuple[Batch, Fence, tuple[Any, ...]]] = field(default_factory=dict)
    begun: dict[int, tuple[Batch, Fence]] = field(default_factory=dict)
    """Block to be → what sinks over the source begin with."""
    given: dict[tuple[str, int], Batch] = field(default_factory=dict)
    """Sink over the source, block → what it has."""
    given_notes: set[tuple[str, int]] = field(default_factory=set)
    spark_committed: int = -1
    loops: bool = False
    """The first sink closes a loop: what it had in an epoch is rows of the next, if there is anything of it."""
    waiting: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """Epoch → what its commit has for the next one."""
    _states: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        return len(self.commits)

    @property
    def ranges(self) -> Ranges:
        return self.commits[self.committed][1] if self.commits else {}

    def prepared(self) -> tuple[Prepared, ...]:
        """The levels of the epoch after the committed one that are there."""
        epoch = self.committed + 1
        found = [self.prepares.get((epoch, level)) for level in range(1, self.levels + 1)]
        return tuple(one[0] for one in found if one)

    # The source

    def feed_started(self, incarnation: int) -> FeedStarted:
        """What a driver's feed finds."""
        last = max(self.blocks, default=0)
        begun = self.begun.get(last + 1)
        return FeedStarted(
            incarnation,
            last,
            self.blocks[last][0] if last else None,
            begun[0] if begun else None,
            read=self.position,
            sinks=self.source_sinks,
            sinks_at_once=2,
            sinks_done=frozenset(sink for sink, number in self.given_notes if number == last + 1),
            prefetch=self.prefetch,
        )

    @property
    def position(self) -> int:
        return self.ranges[FEED].last if self.commits else 0

    def begin(self, told: BeginBatch) -> BatchBegun:
        number, known = told.fence.epoch, self.blocks.get(told.fence.epoch)
        late = known is not None and told.fence < known[1]  # of a driver, or a try, that was given up
        invariant(known is None or late, "begun with a block that is there")
        return BatchBegun(told.id, *self.begun.setdefault(number, (told.batch, told.fence)))

    def give(self, told: RunSourceSink) -> None:
        """What a sink over the source gets of a batch that has a block is lost if the driver dies before."""
        number, sink = told.fence.epoch, told.sink
        known = self.given.setdefault((sink, number), told.batch)
        invariant(known == told.batch, f"{sink} saw unlike rows of block {number}")
        if not told.last:
            self.given_notes.add((sink, number))

    def put_block(self, told: StoreBlock) -> BlockStored:
        number = told.fence.epoch
        before = self.blocks.get(number - 1)
        invariant(before is not None or number == 1, "a block with a gap")
        fits = before is None or told.batch.batch_id == before[0].batch_id + 1
        invariant(fits, "blocks of batches that do not follow each other")
        invariant(all((sink, number) in self.given for sink in self.source_sinks), "a block before its sinks")
        batch, fence, _ = self.blocks.setdefault(number, (told.batch, told.fence, told.tags))
        return BlockStored(told.id, batch, fence)

    def find_block(self, told: FindBlock) -> BlockFound:
        for number, (batch, _, _) in self.blocks.items():
            if batch.batch_id == told.batch.batch_id:
                return BlockFound(told.id, number, batch)
        return BlockFound(told.id, None)

    def tags_of(self, ranges: Ranges) -> tuple[Any, ...]:
        """The rows of the first level: of blocks that are there."""
        found: tuple[Any, ...] = ()
        for number in ranges[FEED].numbers:
            invariant(number in self.blocks, "an epoch of a block that is not there")
            found += self.blocks[number][2]
        return found

    def check_finished(self, told: FinishBatch) -> None:
        """What Spark may be told of a batch."""
        there = told.block in self.blocks and self.blocks[told.block][0] == told.batch
        invariant(there, "finished without a block")
        invariant(self.prefetch or told.block <= self.position, "finished without a commit")
        self.spark_committed = max(self.spark_committed, told.batch.batch_id)

    # Epochs

    def put_prepare(self, told: StorePrepare) -> PrepareStored:
        epoch, level = told.fence.epoch, told.level
        invariant(level == 1 or (epoch, level - 1) in self.prepares, "a level is prepared before the one below it")
        ours = Prepared(level, told.fence, told.ranges)
        return PrepareStored(told.id, self.prepares.setdefault((epoch, level), (ours, told.tags))[0])

    def around(self, epoch: int, outputs: tuple[int, ...]) -> tuple[Any, ...]:
        """What goes round, by what the sink that closes the loop has had: some of it, until it runs dry."""
        return (("around", epoch, outputs),) if outputs[0] % 3 else ()

    def rounds(self) -> dict[str, int]:
        """What the last commit has for the next epoch."""
        rows = len(self.waiting.get(self.committed, ()))
        return {"loop": rows} if rows else {}

    def put_commit(self, told: StoreCommit, around: tuple[Any, ...] = ()) -> CommitStored:
        epoch = told.fence.epoch
        invariant(all((sink, epoch) in self.taken for sink in self.sinks), "a commit before its sinks")
        invariant(epoch <= self.committed + 1, "a commit with a gap")
        fence, ranges = self.commits.setdefault(epoch, (told.fence, told.ranges))
        rows = len(self.waiting.setdefault(epoch, around))
        return CommitStored(told.id, fence, ranges, {"loop": rows} if rows else {})

    def put_sink(self, sink: str, epoch: int, rows: tuple[int, ...], *, note: bool = False) -> None:
        invariant(self.taken.setdefault((sink, epoch), rows) == rows, f"{sink} saw unlike rows of epoch {epoch}")
        if note:
            self.notes.add((sink, epoch))

    def noted(self) -> frozenset[str]:
        """The sinks that are known to have the epoch after the committed one."""
        return frozenset(sink for sink, epoch in self.notes if epoch == self.committed + 1)

    def put_manifest(self, epoch: int, packs: Iterable[Pack]) -> None:
        self.manifests.setdefault(epoch, {slice_: pack.file for pack in packs for slice_ in sorted(pack.slices)})

    def cut_log(self, epoch: int) -> None:
        invariant(epoch in self.manifests, "cut where no checkpoint is")
        invariant(epoch < max(self.manifests), "cut at the newest checkpoint")
        self.cut = max(self.cut, epoch)

    def checkpointed(self, checkpoint: int, slice_: int) -> int:
        """A slice as that checkpoint has it; 0 is the beginning of the log."""
        if checkpoint == 0:
            return 0
        if checkpoint not in self.manifests:
            raise StoreError(f"The checkpoint of epoch {checkpoint} is gone.", safe="Nothing was changed.")
        return self.unpacked(self.manifests[checkpoint][slice_])[slice_]

    def write_pack(self, name: str, states: Mapping[int, int], chance: random.Random) -> None:
        raise Impossible("this store has no disk")

    def unpacked(self, file: object) -> Mapping[int, int]:
        """slice → state"""
        if not isinstance(file, tuple):
            raise Impossible(f"{file!r} is no tuple")
        return dict(file)

    def replayed(self, slice_: int, state: int, begin: int, end: int) -> int:
        """A slice that had this state at position ``begin``, at ``end``."""
        if begin < end and begin < self.cut * self.levels:
            raise StoreError(f"The log of epoch {begin // self.levels + 1} was cut.", safe="Nothing was changed.")
        for position in range(begin, end):
            state = applied(state, slice_, self._rows(position))
        return state

    def oracle(self, slice_: int, position: int) -> int:
        """What a slice must be at a position, by the prepares alone."""
        if position == 0:
            return 0
        if (slice_, position) not in self._states:
            before = self.oracle(slice_, position - 1)
            self._states[slice_, position] = applied(before, slice_, self._rows(position - 1))
        return self._states[slice_, position]

    def _rows(self, position: int) -> object:
        return self.prepares[position // self.levels + 1, position % self.levels + 1][1]

    def output(self, slice_: int, epoch: int) -> int:
        """What a sink must get of a slice."""
        return self.oracle(slice_, epoch * self.levels)

    def tag(self, taken: Batch | Range, fence: Fence, level: int, rows: tuple[int, ...]) -> Tag:
        """What an intake answers. Its rows carry its fence, as those of a plan that is not deterministic would."""
        return Tag(SegmentRef(f"{taken} {rows} {fence}", 1, 0, 0, 0, 0))

    def reopened(self) -> None:
        """Somebody starts, and reads what is there."""

    def check(self, since: int = 0) -> None:
        """The commits above ``since``: no hole, every batch once, every sink the oracle's rows."""
        invariant(sorted(self.commits) == [*range(1, self.committed + 1)], "a hole in the commits")
        for epoch in range(since + 1, self.committed + 1):
            taken = self.commits[epoch][1][FEED]
            before = self.commits[epoch - 1][1][FEED].last if epoch > 1 else 0
            invariant(taken.first == before + 1 and taken.last >= before, "a block twice, or never")
            invariant(taken or epoch > 1, "a tick before any block")
            for number in taken.numbers:
                invariant(self.blocks[number][0] == spark_batch(number - 1), "a batch twice, or never")
            rows = tuple(tag for number in taken.numbers for tag in self.blocks[number][2])
            if self.loops:
                rows = (*self.waiting.get(epoch - 1, ()), *rows)
                around = self.around(epoch, tuple(self.output(slice_, epoch) for slice_ in range(self.slices)))
                invariant(self.waiting[epoch] == around, "rows of a loop are lost, or made up")
            invariant(self.same_rows(epoch, rows), "an epoch has other rows than its blocks")
            levels = range(1, self.levels + 1)
            prepared = {self.prepares[epoch, level][0].ranges[FEED] for level in levels}
            invariant(prepared == {taken}, "committed as another one")
            outputs = tuple(self.output(slice_, epoch) for slice_ in range(self.slices))
            invariant(all(self.taken[sink, epoch] == outputs for sink in self.sinks), "a sink got other rows")

    def same_rows(self, epoch: int, rows: tuple[Any, ...]) -> bool:
        """Whether these are what the first level of the epoch was prepared of."""
        return self.prepares[epoch, 1][1] == rows

    def check_checkpoint(self, epoch: int) -> None:
        for slice_ in range(self.slices):
            self.check_checkpointed(epoch, slice_)

    def check_checkpointed(self, epoch: int, slice_: int) -> None:
        state = self.checkpointed(epoch, slice_)
        self.check_state(slice_, epoch * self.levels, state, f"the checkpoint of epoch {epoch}")

    def check_state(self, slice_: int, position: int, state: int, whose: str) -> None:
        invariant(state == self.oracle(slice_, position), f"{whose}: slice {slice_} is wrong at position {position}")


@dataclass
class Container:
    """Active slices and copies of others. A slice's position counts the levels it has applied since the beginning."""

    name: str
    store: Store
    held: dict[int, dict[int, int]] = field(default_factory=dict)
    """slice → position → state: the newest, and older ones as far as undo, readers and checkpoints need them."""
    copies: dict[int, tuple[int, int]] = field(default_factory=dict)
    """slice → epoch and state of a backup."""
    fences: dict[int, Fence] = field(default_factory=dict)

    def perform(self, told: ToContainer) -> Answer:
        """Whatever this container can do by itself."""
        to = told.id
        match told:
            case Restore():
                self._restore(told)
                return Restored(to)
            case Apply():
                return Applied(to, self._apply(told))
            case Undo():
                self._undo(told)
                return Undone(to)
            case Activate():
                self._activate(told)
                return Activated(to)
            case Demote():
                self._demote(told)
                return Demoted(to)
            case Forget():
                for slice_ in told.slices:
                    self.held.pop(slice_, None)
                    self.copies.pop(slice_, None)
                return Dropped(to)
            case DropCopies():
                for slice_ in told.slices:
                    self.copies.pop(slice_, None)
                return Dropped(to)
            case TakeDigests(slices=slices, epoch=epoch):
                states = {slice_: self.state(slice_, epoch) for slice_ in sorted(slices)}
                return DigestsTaken(to, tuple((one, state) for one, state in states.items() if state is not None))
            case WriteCheckpoint(epoch=epoch):
                return CheckpointWritten(to, tuple(sorted(self.as_of(told.slices, epoch).items())))
        raise Impossible(f"{type(told).__name__} is not for one container alone")

    def state(self, slice_: int, epoch: int) -> int | None:
        """As of a whole epoch, if it is still there."""
        return self.held.get(slice_, {}).get(epoch * self.store.levels)

    def as_of(self, slices: Iterable[int], epoch: int) -> dict[int, int]:
        """All of these slices as of an epoch that readers may still see."""
        found = {slice_: self.state(slice_, epoch) for slice_ in slices}
        there = {slice_: state for slice_, state in found.items() if state is not None}
        if len(there) < len(found):
            raise EpochGone(f"Epoch {epoch} of slices {sorted(found.keys() - there.keys())} is gone.")
        return there

    def output(self, slice_: int, position: int) -> int | None:
        """What a scan finds of a slice that has come so far."""
        return self.held.get(slice_, {}).get(position)

    def pinned(self, told: SendCopies) -> Mapping[int, object]:
        """What is sent of each slice, as of the epoch; it stays readable until ``unpin``."""
        found = {slice_: self.state(slice_, told.epoch) for slice_ in sorted(told.slices)}
        return {slice_: state for slice_, state in found.items() if state is not None}

    def unpin(self, told: SendCopies) -> None:
        pass

    def take_copy(self, slice_: int, epoch: int, state: object) -> None:
        if not isinstance(state, int):
            raise Impossible(f"{state!r} is no state")
        if self.copies.get(slice_, (-1, 0))[0] < epoch:
            self.copies[slice_] = (epoch, state)

    def checkpoint(self, told: WriteCheckpoint, name: str, chance: random.Random) -> Callable[[], Answer]:
        """What writes the pack, as of what is pinned now."""
        states = self.as_of(told.slices, told.epoch)

        def write() -> Answer:
            self.store.write_pack(name, states, chance)
            return CheckpointWritten(told.id, name)

        return write

    def verify(self, told: VerifyPacks) -> Answer:
        for pack in told.packs:
            self.store.unpacked(pack.file)
        return PacksVerified(told.id)

    def close(self) -> None:
        """Its process has ended."""

    def versions(self, slices: Iterable[int]) -> dict[int, int]:
        """The epochs of the copies that are here."""
        return {slice_: self.copies[slice_][0] for slice_ in sorted(slices) if slice_ in self.copies}

    def check(self) -> None:
        """Everything here is what the log says."""
        for slice_, versions in self.held.items():
            for position, state in versions.items():
                self.store.check_state(slice_, position, state, self.name)
        for slice_, (epoch, state) in self.copies.items():
            self.store.check_state(slice_, epoch * self.store.levels, state, f"the copy on {self.name}")

    # --------------------------------------------------------------------------------------------- what it does

    def _restore(self, told: Restore) -> None:
        store, levels = self.store, self.store.levels
        end = told.epoch * levels
        fresh = {}
        for slice_ in told.slices:
            state = store.checkpointed(told.checkpoint, slice_)
            fresh[slice_] = {end: store.replayed(slice_, state, told.checkpoint * levels, end)}
        self._fence(told)
        self.held.update(fresh)
        for slice_ in fresh:
            self.copies.pop(slice_, None)

    def _apply(self, told: Apply) -> tuple[tuple[int, int], ...]:
        begin = (told.fence.epoch - 1) * self.store.levels
        at = begin + told.level
        self._fence(told)
        for slice_ in sorted(told.slices):
            versions = self._active(slice_, told)
            invariant(max(versions) == at - 1, f"slice {slice_} at {max(versions)}, not {at - 1}")
            versions[at] = self.store.replayed(slice_, versions[at - 1], at - 1, at)
            self.held[slice_] = {position: state for position, state in versions.items() if position >= begin}
        stirred = bool(self.store.prepares[told.fence.epoch, told.level][0].ranges[FEED])
        return tuple((slice_, self.held[slice_][at] if stirred else 0) for slice_ in sorted(told.digests))

    def _undo(self, told: Undo) -> None:
        begin = (told.fence.epoch - 1) * self.store.levels
        self._fence(told)
        for slice_ in told.slices:
            self.held[slice_] = {begin: self._active(slice_, told)[begin]}

    def _activate(self, told: Activate) -> None:
        """From what is here: the slice itself where it only fell behind, else the copy, which is used up."""
        end, fresh, used = told.epoch * self.store.levels, {}, []
        for slice_ in told.slices:
            if slice_ in self.held:
                position = max(self.held[slice_])
                state = self.held[slice_][position]
                invariant(position <= end, f"slice {slice_} is past {told.epoch} already")
            elif told.epoch == 0:
                position, state = 0, 0
            elif self.copies.get(slice_, (told.epoch + 1, 0))[0] <= told.epoch:
                copied, state = self.copies[slice_]
                position = copied * self.store.levels
                used.append(slice_)
            else:
                raise EpochGone(f"Nothing of slice {slice_} at epoch {told.epoch} or before is here.")
            fresh[slice_] = {end: self.store.replayed(slice_, state, position, end)}
        self._fence(told)
        self.held.update(fresh)
        for slice_ in used:
            del self.copies[slice_]

    def _demote(self, told: Demote) -> None:
        for slice_ in told.slices:
            versions = self._active(slice_, told)
            invariant(max(versions) == told.epoch * self.store.levels, "put away while it is elsewhere")
            del self.held[slice_]
            self.take_copy(slice_, told.epoch, versions[told.epoch * self.store.levels])

    def _active(self, slice_: int, told: ToContainer) -> dict[int, int]:
        invariant(slice_ in self.held, f"{type(told).__name__} of slice {slice_}, which is not on {self.name}")
        return self.held[slice_]

    def _fence(self, told: ToContainer) -> None:
        for slice_ in told.slices:
            before = self.fences.get(slice_, told.fence)
            invariant(told.fence >= before, f"{self.name} got {told.fence} after {before}")
            self.fences[slice_] = told.fence
