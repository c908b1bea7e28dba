"""The log's rows as a container takes them: from staging where they were pushed, else from their segments.

What ``prepare`` says is law. A segment that is not the one that was prepared is an error that names file, epoch and
source offsets, never a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.container.slices import HostedStage, Inputs
from holdfast.container.staging import Staging
from holdfast.errors import CorruptionError, StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.records import Prepare, SegmentRef
from holdfast.log.segment import Chunk, Segment
from holdfast.plan.stage import InputPlan

APPLY_BYTES = 256 << 20


class LogReader:
    def __init__(self, ledger: Ledger, staging: Staging, slices: int) -> None:
        self.ledger = ledger
        self.staging = staging
        self._slices = slices

    def prepare(self, epoch: int, level: int) -> Prepare:
        prepare = self.ledger.get_prepare(epoch, level)
        if prepare is None:
            raise CorruptionError(
                f"{Prepare.file_of(epoch, level)} is missing, and epoch {epoch} is needed to bring state back.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        return prepare

    def affordable(self, prepare: Prepare, slices: Sequence[int]) -> Iterator[Sequence[int]]:
        """The slices in groups whose rows of the epoch fit into memory together, however large the epoch is."""
        whole = sum(ref.nbytes for ref in prepare.segments) * len(slices) // self._slices
        size = max(1, len(slices) * APPLY_BYTES // max(whole, APPLY_BYTES))
        return (slices[at : at + size] for at in range(0, len(slices), size))

    def rows_of(self, stage: HostedStage, prepare: Prepare, slices: Sequence[int]) -> dict[int, Inputs]:
        """The epoch's rows of each wanted slice, in the order that ``prepare`` fixed: (partition, position)."""
        wanted = np.zeros(self._slices, dtype=bool)
        wanted[list(slices)] = True
        found: dict[int, Inputs] = {}
        if not slices:
            return found
        for port, place in enumerate(stage.plan.inputs):
            of = prepare if place.level == prepare.level else self.prepare(prepare.fence.epoch, place.level)
            for ref in of.segments:
                try:
                    self._take_rows(stage, port, place, of, ref, wanted, found)
                except CorruptionError as error:
                    raise _lost_segment(of, ref, error) from error
        return found

    def scrub(self, first: int, last: int, levels: int) -> int:
        """Read back the log of these epochs, every byte. Raises on the first segment that is not what was written."""
        segments = 0
        for epoch in range(first, last + 1):
            for level in range(1, levels + 1):
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
        found: dict[int, Inputs],
    ) -> None:
        partial = place.number in ref.partial
        for chunk in self._chunks(prepare, ref, place.number, wanted):
            rows = stage.operator.decode(chunk.rows, port=port, partial=partial)
            bounds = chunk.bounds.tolist()
            for at, number in enumerate(chunk.slices.tolist()):
                if wanted[number]:
                    inputs = found.get(number)
                    if inputs is None:
                        inputs = found[number] = [[] for _ in stage.plan.inputs]
                    inputs[port].append(rows.slice(bounds[at], bounds[at + 1]))

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
            segment = Segment.at(self.ledger.section, ref.name)
        except StoreError as error:
            raise _lost_segment(prepare, ref, error) from error
        if segment.checksum != ref.checksum:
            raise _lost_segment(prepare, ref, CorruptionError("it is not the file that was prepared"))
        return segment


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
