"""The log's rows as a container takes them: from staging where they were pushed, else from their segments.

What ``prepare`` says is law. A segment that is not the one that was prepared is an error that names file, epoch and
source offsets, never a gap.

An epoch may be larger than memory. Its slices come in groups whose rows fit, by what the segments' directories say of
each; and a slice that alone is more than that comes in pieces, where its stage can take rows piece by piece. Whether a
slice comes in pieces depends on the log alone; where one ends, also on whether its rows were pushed. Its outputs
depend on neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from holdfast.container.slices import HostedStage, Inputs, Pieces
from holdfast.container.staging import Staging
from holdfast.errors import CorruptionError, StoreError
from holdfast.log.blocks import batch_at
from holdfast.log.ledger import Ledger
from holdfast.log.records import Prepare, SegmentRef
from holdfast.log.segment import Chunk, Segment
from holdfast.operators.stage import InputPlan
from holdfast.state.rows import Rows

APPLY_BYTES = 128 << 20
"""Of the log, that are in memory at once. Decoded and joined they take about three times as much."""


class Group(NamedTuple):
    """Slices whose rows are in memory together; or one that comes in pieces, because alone it is too much.

    If it is ``part`` of an epoch, only the rows of its own slices are kept of each chunk.
    """

    slices: Sequence[int]
    part: bool = False
    in_pieces: bool = False


class LogReader:
    def __init__(self, ledger: Ledger, staging: Staging, slices: int, apply_bytes: int = APPLY_BYTES) -> None:
        self.ledger = ledger
        self.staging = staging
        self._slices = slices
        self._apply_bytes = apply_bytes
        self._open: tuple[int, dict[str, Segment]] = 0, {}
        """The epoch whose segments were opened last, and these: stages of one level read the same ones."""

    def close(self) -> None:
        """Let go of what is open."""
        self._open = 0, {}

    def prepare(self, epoch: int, level: int) -> Prepare:
        prepare = self.ledger.get_prepare(epoch, level)
        if prepare is None:
            raise CorruptionError(
                f"{Prepare.file_of(epoch, level)} is missing, and epoch {epoch} is needed to bring state back.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        return prepare

    def groups(self, stage: HostedStage, prepare: Prepare, slices: Sequence[int]) -> Iterator[Group]:
        """The slices in groups whose rows of the epoch fit into memory together, however large the epoch is."""
        inputs = [(place.number, self._of(prepare, place)) for place in stage.plan.inputs]
        whole = sum(ref.nbytes for _, of in inputs for ref in of.segments)
        if whole <= self._apply_bytes or not slices:
            if slices:
                yield Group(slices)
            return
        sizes = np.zeros(self._slices)
        for number, of in inputs:
            for ref in of.segments:
                sizes += self._segment(of, ref).nbytes_of(number)
        if sizes[list(slices)].sum() <= self._apply_bytes:  # the epoch is large, this container's share of it is not
            yield Group(slices)
            return
        group: list[int] = []
        room = float(self._apply_bytes)
        for number in slices:
            size = float(sizes[number])
            if size > room and group:
                yield Group(group, part=True)
                group, room = [], float(self._apply_bytes)
            if size > self._apply_bytes and stage.operator.gradual:
                yield Group([number], part=True, in_pieces=True)
                continue
            group.append(number)
            room -= size
        if group:
            yield Group(group, part=True)

    def inputs_of(self, stage: HostedStage, prepare: Prepare, group: Group) -> Mapping[int, Inputs]:
        """The epoch's rows of each slice of a group, in the order that ``prepare`` fixed: (partition, position)."""
        if group.in_pieces:
            return {number: [Pieces(self._pieces(stage, prepare, number))] for number in group.slices}
        wanted = self._flags(group.slices)
        found: dict[int, list[list[Rows]]] = {}
        for port, place in enumerate(stage.plan.inputs):
            of = self._of(prepare, place)
            for ref in of.segments:
                try:
                    self._take_rows(stage, port, place, of, ref, wanted, found, part=group.part)
                except CorruptionError as error:
                    self.close()  # whoever asks again shall see what is there then
                    raise self._lost_segment(of, ref, error) from error
        return found

    def _pieces(self, stage: HostedStage, prepare: Prepare, number: int) -> Iterator[Rows]:
        """The epoch's rows of one slice in the same order, a bounded number of bytes at a time."""
        (place,) = stage.plan.inputs
        of, wanted = self._of(prepare, place), self._flags([number])
        piece: list[Rows] = []
        size = 0
        for ref in of.segments:
            partial = place.number in ref.partial
            try:
                for chunk in self._chunks(of, ref, place.number, wanted, part=True):
                    piece.append(stage.operator.decode(chunk.rows, partial=partial))
                    size += chunk.rows.nbytes
                    if size > self._apply_bytes // 2:
                        yield stage.operator.concat(piece)
                        piece, size = [], 0
            except CorruptionError as error:
                raise self._lost_segment(of, ref, error) from error
        if piece:
            yield stage.operator.concat(piece)

    def scrub(self, first: int, last: int, levels_of: Callable[[Prepare], int]) -> int:
        """Read back the log of these epochs, every byte. Raises on the first segment that is not what was written."""
        segments = 0
        for epoch in range(first, last + 1):
            for level in range(1, levels_of(self.prepare(epoch, 1)) + 1):
                prepare = self.prepare(epoch, level)
                for ref in prepare.segments:
                    if ref.inline is None:
                        self._segment(prepare, ref).verify()
                        segments += 1
        return segments

    def _take_rows(
        self,
        stage: HostedStage,
        port: int,
        place: InputPlan,
        prepare: Prepare,
        ref: SegmentRef,
        wanted: np.ndarray,
        found: dict[int, list[list[Rows]]],
        *,
        part: bool,
    ) -> None:
        if ref.inputs is not None and place.number not in ref.inputs:
            return  # not even worth a look
        partial = place.number in ref.partial
        for chunk in self._chunks(prepare, ref, place.number, wanted, part=part):
            rows = stage.operator.decode(chunk.rows, port=port, partial=partial)
            bounds = chunk.bounds.tolist()
            for at, number in enumerate(chunk.slices.tolist()):
                if wanted[number]:
                    inputs = found.get(number)
                    if inputs is None:
                        inputs = found[number] = [[] for _ in stage.plan.inputs]
                    inputs[port].append(rows.slice(bounds[at], bounds[at + 1]))

    def _of(self, prepare: Prepare, place: InputPlan) -> Prepare:
        """The prepare that has the rows of an input: sources' rows are in the first one, whoever takes them."""
        return prepare if place.level == prepare.level else self.prepare(prepare.fence.epoch, place.level)

    def _flags(self, slices: Sequence[int]) -> np.ndarray:
        wanted = np.zeros(self._slices, dtype=bool)
        wanted[list(slices)] = True
        return wanted

    def _chunks(
        self, prepare: Prepare, ref: SegmentRef, input: int, wanted: np.ndarray, *, part: bool
    ) -> Iterator[Chunk]:
        """The chunks that have wanted slices, and if it is ``part`` of an epoch nothing else."""
        chunks: Iterable[Chunk] | None = self.staging.take((ref.name, input), wanted)
        if chunks is None:
            # What is mapped and was touched stays in memory as long as the mapping.
            chunks = self._segment(prepare, ref, mapped=not part).chunks(input, wanted)
        for chunk in chunks:
            mine = wanted[chunk.slices]
            if mine.any():
                yield chunk.only(wanted) if part and not mine.all() else chunk

    def _segment(self, prepare: Prepare, ref: SegmentRef, *, mapped: bool = True) -> Segment:
        """A segment that is what ``prepare`` says; an error names file, epoch and source offsets."""
        epoch, name = prepare.fence.epoch, f"{ref.name or prepare.file} {ref.inline} {ref.checksum}"
        of, known = self._open
        if of != epoch:
            of, known = self._open = epoch, {}
        if mapped and name in known:
            return known[name]
        try:
            if ref.inline is not None:
                segment = Segment.open(prepare.attachments[ref.inline], f"{prepare.file} (inline rows)")
            else:
                segment = Segment.at(self.ledger.section, ref.name, mapped=mapped)
        except StoreError as error:
            raise self._lost_segment(prepare, ref, error) from error
        if segment.checksum != ref.checksum:
            raise self._lost_segment(prepare, ref, CorruptionError("it is not the file that was prepared"))
        if mapped:
            known[name] = segment
        return segment

    def _lost_segment(self, prepare: Prepare, ref: SegmentRef, cause: StoreError) -> CorruptionError:
        """The error for rows that were prepared and cannot be read: file, epoch, source offsets."""
        if "source offsets" in cause.what:
            return CorruptionError(cause.what, safe=cause.safe, todo=cause.todo)
        where = ref.name or f"{prepare.file} (inline rows)"
        batch = prepare.batch or batch_at(self.ledger, prepare.position)
        offsets = f" They are the rows of source offsets {batch.offsets}." if batch is not None else ""
        return CorruptionError(
            f"The rows of epoch {prepare.fence.epoch} in {where} cannot be read: {cause.what}{offsets}",
            safe="Nothing was skipped and nothing was changed; other epochs and checkpoints are not touched.",
            todo="Bring the file back from a copy of the store, or start with a new one and read these offsets again.",
        )
