"""The slices of one job on this container, and what can be done to them.

All slices of all stages answer the same six questions (``holdfast.state``), so this module knows nothing of
aggregates. Work is cut by slice: a pool of threads runs them side by side (the kernels let go of the GIL), and each
slice has one lock, held only while that slice is applied or read.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from holdfast import faults
from holdfast.container.staging import Staging
from holdfast.errors import CorruptionError, EpochGone, FencedError, StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.pack import Pack, PackWriter
from holdfast.log.pack import SliceState as PackedSlice
from holdfast.log.records import Prepare, SegmentRef
from holdfast.log.segment import Chunk, Segment
from holdfast.operators.aggregate import AggregateOperator, Rows
from holdfast.plan.stage import StagePlan
from holdfast.state.slice import Mode, SliceState

LEASE_SECONDS = 60.0
PINNED_BYTES = 1 << 30
APPLY_BYTES = 256 << 20


@dataclass
class HeldSlice:
    """A slice's state with the lock of whoever works on it."""

    state: SliceState
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class HostedStage:
    plan: StagePlan
    operator: AggregateOperator
    slices: dict[int, HeldSlice] = field(default_factory=dict)


class HostedJob:
    """One job's slices here, behind the fence of its newest master."""

    def __init__(
        self,
        job: str,
        plans: Sequence[StagePlan],
        slices: int,
        ledger: Ledger,
        pool: ThreadPoolExecutor,
        staging: Staging,
    ) -> None:
        self.job = job
        self.slice_count = slices
        self.ledger = ledger
        self.store = ledger.section
        self.stages = {plan.name: HostedStage(plan, plan.build()) for plan in plans}
        self.levels = max(plan.level for plan in plans)
        self.committed = 0
        self._pool = pool
        self._threads: int = pool._max_workers
        self.staging = staging
        self._incarnation = 0
        self._pins: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    # --- who may speak ------------------------------------------------------------------------------------

    def admit(self, incarnation: int) -> None:
        with self._lock:
            if incarnation < self._incarnation:
                raise FencedError(
                    f"Master {incarnation} of job '{self.job}' has been replaced by master {self._incarnation}.",
                    safe="Nothing was changed by this request; the newer master owns the state.",
                    todo="Stop this driver.",
                )
            self._incarnation = incarnation

    # --- apply, undo, commit ------------------------------------------------------------------------------

    def apply(self, prepare: Prepare, slices: Sequence[int]) -> dict[str, Any]:
        """Bring ``slices`` of the prepare's level from e-1 to e. Slices that are there already stay as they are."""
        epoch = prepare.fence.epoch
        sizes = {}
        for stage in self._at_level(prepare.level):
            todo = [number for number in slices if stage.slices[number].state.epoch < epoch]
            for group in self._affordable(prepare, todo):
                rows = self._rows_of(stage, prepare, group)

                def run(number: int, stage: HostedStage = stage, rows: dict[int, list[Rows]] = rows) -> None:
                    held = stage.slices[number]
                    parts = rows.get(number)
                    with held.lock:
                        held.state.apply(epoch, stage.operator.concat(parts) if parts else None)

                self._each(group[: len(group) // 2], run)
                faults.place("container", "mid-apply", epoch)
                self._each(group[len(group) // 2 :], run)
            states = [held.state for held in list(stage.slices.values())]
            sizes[stage.plan.name] = {
                "changed": sum(state.changed for state in states),
                "rows": sum(state.rows for state in states),
            }
        if prepare.level == self.levels:
            self.staging.drop_through(epoch)
        return {"stages": sizes}

    def undo(self, epoch: int, slices: Sequence[int]) -> None:
        """Take ``epoch`` back on these slices, in every stage that has come so far."""
        for stage in self.stages.values():
            for held in [stage.slices[number] for number in slices]:
                with held.lock:
                    if held.state.epoch == epoch:
                        held.state.undo()

    def commit(self, epoch: int) -> None:
        """Every epoch up to this one is committed: what could undo it may go, unless a reader has it pinned."""
        if epoch > self.committed:
            self.committed = epoch
            self._release()

    # --- bring back ---------------------------------------------------------------------------------------

    def restore(
        self, slices: Sequence[int], epoch: int, checkpoint: int, packs: dict[str, list[int]]
    ) -> dict[str, int]:
        """Load ``slices`` as of ``checkpoint`` and replay the log up to ``epoch``; they appear when they are whole."""
        fresh: dict[str, dict[int, HeldSlice]] = {}
        loaded = 0
        for stage in self.stages.values():
            fresh[stage.plan.name] = {number: HeldSlice(stage.operator.new_slice()) for number in slices}
        if checkpoint:
            loaded = self._load(fresh, slices, checkpoint, packs)
        replayed = 0
        for past in range(checkpoint + 1, epoch + 1):
            for level in range(1, self.levels + 1):
                replayed += self._replay(fresh, self._prepare(past, level), slices)
        with self._lock:
            for name, held in fresh.items():
                self.stages[name].slices.update(held)
            self.committed = max(self.committed, epoch)
        return {"loaded": loaded, "replayed": replayed}

    def forget(self, slices: Iterable[int]) -> None:
        with self._lock:
            for stage in self.stages.values():
                for number in slices:
                    stage.slices.pop(number, None)

    def _load(
        self,
        fresh: dict[str, dict[int, HeldSlice]],
        slices: Sequence[int],
        checkpoint: int,
        packs: dict[str, list[int]],
    ) -> int:
        place = {number: name for name, numbers in packs.items() for number in numbers}
        opened = {name: Pack.open(self.store, name) for name in {place[number] for number in slices}}
        sizes = []

        def load(work: tuple[str, int]) -> None:
            stage, number = work
            table = opened[place[number]].slice(stage, number).combine_chunks()
            (copy,) = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
            fresh[stage][number].state.load([copy], checkpoint)
            sizes.append(copy.nbytes)

        self._each([(stage, number) for stage in fresh for number in slices], load)
        return sum(sizes)

    def _replay(self, fresh: dict[str, dict[int, HeldSlice]], prepare: Prepare, slices: Sequence[int]) -> int:
        epoch = prepare.fence.epoch
        total = 0
        for stage in self._at_level(prepare.level):
            for group in self._affordable(prepare, slices):
                rows = self._rows_of(stage, prepare, group)
                total += sum(len(part) for parts in rows.values() for part in parts)

                def run(number: int, stage: HostedStage = stage, rows: dict[int, list[Rows]] = rows) -> None:
                    state = fresh[stage.plan.name][number].state
                    parts = rows.get(number)
                    state.apply(epoch, stage.operator.concat(parts) if parts else None)
                    state.release(epoch)

                self._each(group, run)
        return total

    def _affordable(self, prepare: Prepare, slices: Sequence[int]) -> Iterator[Sequence[int]]:
        """The slices in groups whose rows of the epoch fit into memory together, however large the epoch is."""
        whole = sum(ref.nbytes for ref in prepare.segments) * len(slices) // self.slice_count
        size = max(1, len(slices) * APPLY_BYTES // max(whole, APPLY_BYTES))
        return (slices[at : at + size] for at in range(0, len(slices), size))

    # --- the log's rows -----------------------------------------------------------------------------------

    def _rows_of(self, stage: HostedStage, prepare: Prepare, slices: Sequence[int]) -> dict[int, list[Rows]]:
        """The epoch's rows of each wanted slice, in the order that ``prepare`` fixed: (partition, position)."""
        wanted = np.zeros(self.slice_count, dtype=bool)
        wanted[list(slices)] = True
        found: dict[int, list[Rows]] = {}
        if not slices:
            return found
        for ref in prepare.segments:
            try:
                self._take_rows(stage, prepare, ref, wanted, found)
            except CorruptionError as error:
                raise _lost_segment(prepare, ref, error) from error
        return found

    def _take_rows(
        self,
        stage: HostedStage,
        prepare: Prepare,
        ref: SegmentRef,
        wanted: np.ndarray,
        found: dict[int, list[Rows]],
    ) -> None:
        partial = stage.plan.input in ref.partial
        for chunk in self._chunks(prepare, ref, stage.plan.input, wanted):
            rows = stage.operator.decode(chunk.rows, partial=partial)
            bounds = chunk.bounds.tolist()
            for at, number in enumerate(chunk.slices.tolist()):
                if wanted[number]:
                    found.setdefault(number, []).append(rows.slice(bounds[at], bounds[at + 1]))

    def _chunks(self, prepare: Prepare, ref: SegmentRef, input: int, wanted: np.ndarray) -> Iterator[Chunk]:
        staged = self.staging.take((ref.name, input), wanted)
        if staged is not None:
            yield from staged
        else:
            yield from self._segment(prepare, ref).chunks(input, wanted)

    def _segment(self, prepare: Prepare, ref: SegmentRef) -> Segment:
        """A segment that is what ``prepare`` says; an error names file, epoch and source offsets."""
        try:
            if ref.inline is not None:
                return Segment.open(prepare.attachments[ref.inline], f"{prepare.file} (inline rows)")
            segment = Segment.at(self.store, ref.name)
        except StoreError as error:
            raise _lost_segment(prepare, ref, error) from error
        if segment.checksum != ref.checksum:
            raise _lost_segment(prepare, ref, CorruptionError("it is not the file that was prepared"))
        return segment

    def _prepare(self, epoch: int, level: int) -> Prepare:
        prepare = self.ledger.get_prepare(epoch, level)
        if prepare is None:
            raise CorruptionError(
                f"{Prepare.file_of(epoch, level)} is missing, and epoch {epoch} is needed to bring state back.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        return prepare

    # --- read ---------------------------------------------------------------------------------------------

    def outputs(
        self, stage_name: str, slices: Sequence[int], epoch: int, mode: Mode | Literal["read"]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The output rows of each slice, one batch a slice, in slice order."""
        stage = self.stages[stage_name]
        for number in slices:
            held = self._held(stage, number)
            with held.lock:
                if mode == "read":
                    batch = held.state.read(epoch)
                else:
                    if held.state.epoch != epoch:
                        raise EpochGone(
                            f"Slice {number} of '{stage_name}' is at epoch {held.state.epoch}, not {epoch}.",
                            todo="Ask the master again.",
                        )
                    batch = held.state.outputs(epoch, mode)
            yield number, batch

    def get(self, stage_name: str, number: int, epoch: int, keys: pa.RecordBatch) -> pa.RecordBatch:
        stage = self.stages[stage_name]
        held = self._held(stage, number)
        with held.lock:
            return held.state.read(epoch, stage.operator.decode_keys(keys))

    def pin(self, reader: str, epoch: int, seconds: float = LEASE_SECONDS) -> None:
        """Keep ``epoch`` readable until ``unpin``, or until the lease runs out or costs too much memory."""
        with self._lock:
            self._pins[reader] = (epoch, time.monotonic() + seconds)

    def unpin(self, reader: str) -> None:
        with self._lock:
            self._pins.pop(reader, None)
        self._release()

    def _held(self, stage: HostedStage, number: int) -> HeldSlice:
        held = stage.slices.get(number)
        if held is None:
            raise EpochGone(f"Slice {number} of '{stage.plan.name}' is not here.", todo="Ask the master again.")
        return held

    def _release(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._pins = {reader: pin for reader, pin in self._pins.items() if pin[1] > now}
            if self._pins and self._undo_bytes() > PINNED_BYTES:
                self._pins = {reader: pin for reader, pin in self._pins.items() if pin[1] == math.inf}
            through = min([self.committed, *(epoch for epoch, _ in self._pins.values())])
            every = [held for stage in self.stages.values() for held in stage.slices.values()]
        for held in every:
            with held.lock:
                held.state.release(through)

    def _undo_bytes(self) -> int:
        return sum(held.state.undo_nbytes for stage in self.stages.values() for held in stage.slices.values())

    # --- checkpoint ---------------------------------------------------------------------------------------

    def checkpoint(self, epoch: int, slices: Sequence[int], pack: str) -> dict[str, Any]:
        """Write ``slices`` as of ``epoch`` into one pack, behind whatever epochs run meanwhile."""
        reader = f"checkpoint-{epoch}"
        self.pin(reader, epoch, math.inf)  # it is given back below, however long the writing takes
        try:
            nbytes = PackWriter().write(self.store, pack, self._copies(epoch, slices))
        finally:
            self.unpin(reader)
        return {"bytes": nbytes}

    def _copies(self, epoch: int, slices: Sequence[int]) -> Iterator[PackedSlice]:
        for name, stage in self.stages.items():
            for number in slices:
                held = self._held(stage, number)
                with held.lock:
                    copy = held.state.delta(0, epoch)
                yield PackedSlice(name, number, epoch, copy)

    def verify(self, packs: Iterable[str]) -> int:
        """Read packs back, every byte of them. Raises on the first that is not what was written."""
        return sum(Pack.open(self.store, name).verify() for name in packs)

    def scrub(self, first: int, last: int) -> int:
        """Read back the log of these epochs, every byte. Raises on the first segment that is not what was written."""
        segments = 0
        for epoch in range(first, last + 1):
            for level in range(1, self.levels + 1):
                prepare = self._prepare(epoch, level)
                for ref in prepare.segments:
                    if ref.inline is None:
                        self._segment(prepare, ref).verify()
                        segments += 1
        return segments

    # --- about itself -------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        with self._lock:
            stages = {
                name: {
                    "slices": len(stage.slices),
                    "rows": sum(held.state.rows for held in stage.slices.values()),
                    "bytes": sum(held.state.nbytes for held in stage.slices.values()),
                }
                for name, stage in self.stages.items()
            }
        return {"stages": stages, "committed": self.committed, "staged": self.staging.used}

    def _at_level(self, level: int) -> list[HostedStage]:
        return [stage for stage in self.stages.values() if stage.plan.level == level]

    def _each(self, work: Sequence[Any], run: Callable[[Any], None]) -> None:
        """Run all of it on the pool, and raise the first error only when nothing is running any more.

        Each thread takes the next piece when it is done with one, so that one long slice does not hold up the others.
        """
        left = iter(work)

        def until_done() -> None:
            for item in left:
                run(item)

        futures = [self._pool.submit(until_done) for _ in range(min(self._threads, len(work)))]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]


def _lost_segment(prepare: Prepare, ref: SegmentRef, cause: StoreError) -> CorruptionError:
    """The error for rows that were prepared and cannot be read: file, epoch, source offsets."""
    if "source offsets" in cause.what:
        return CorruptionError(cause.what, safe=cause.safe, todo=cause.todo)
    where = ref.name or f"{prepare.file} (inline rows)"
    return CorruptionError(
        f"The rows of epoch {prepare.fence.epoch} in {where} cannot be read: {cause.what} "
        f"They are the rows of source offsets {prepare.offsets}.",
        safe="Nothing was skipped and nothing was changed; other epochs and checkpoints are not touched.",
        todo="Bring the file back from a copy of the store, or start with a new store and read these offsets again.",
    )
