"""Small files beside a prepare: what became of its epoch before it was committed.

That applying it failed, or was done after all; what it goes on without; which sinks have it already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.errors import FencedError
from holdfast.log.numbered import read_record
from holdfast.log.records import Fence, LeftOut, Mark, Prepare, Taken

if TYPE_CHECKING:
    from holdfast.log.store import Store


class Marks:
    """Of one section; ``Ledger`` has the rest."""

    section: Store

    @property
    def version(self) -> int:
        """Of the graph that the job has."""
        raise NotImplementedError

    def get_prepare(self, epoch: int, level: int) -> Prepare | None:
        raise NotImplementedError

    @property
    def _is_hub(self) -> bool:
        """Whether it has jobs of which one may be left out."""
        raise NotImplementedError

    def mark_failed(self, fence: Fence, text: str) -> None:
        """Applying the epoch raised and was taken back: it may become what other functions make of it."""
        mark = Mark(fence, "failed", self.version, text)
        self.section.put_if_absent(mark.file, mark.to_bytes())

    def mark_applied(self, fence: Fence) -> None:
        """Before the sinks of an epoch: from here on it is what these functions made of it."""
        mark = Mark(fence, "applied", self.version)
        self.section.put_if_absent(mark.file, mark.to_bytes())

    def seal(self, fence: Fence, left_out: tuple[str, ...]) -> None:
        """Before the sinks of an epoch, which was applied without these stages: from here on it is what these functions
        made of it. In a hub the next note of what it goes on without is taken for that: nobody who has not heard of it
        yet can write that one any more."""
        if not self._is_hub:
            self.mark_applied(fence)
            return
        known = self.left_out(fence.epoch)
        if known is None or (not known.sealed and known.stages == left_out):
            ours = LeftOut(fence, known.number + 1 if known else 1, left_out, sealed=True)
            self.section.put_if_absent(ours.file, ours.to_bytes())
            known = self.left_out(fence.epoch)
        if known is None or not known.sealed or known.stages != left_out:
            raise FencedError(
                f"Another driver goes on with epoch {fence.epoch}, and without other jobs.",
                safe="No sink has had anything of it from this one.",
                todo="Stop this driver, and start one.",
            )

    def failed(self, epoch: int) -> Mark | None:
        """The mark of an epoch that raised with the graph there is, unless its sinks may have begun nevertheless."""
        mark = read_record(self.section, Mark.file_of(epoch, "failed", self.version), Mark.from_bytes)
        return None if mark is None or self.applied(epoch) else mark

    def applied(self, epoch: int) -> bool:
        """Whether sinks may have had something of an epoch, which is prepared."""
        prepare = self.get_prepare(epoch, 1)
        # A graph that only has other names for its stages finishes what the functions of the one before have begun.
        versions = range(prepare.graph if prepare is not None else self.version, self.version + 1)
        if self._is_hub and (note := self.left_out(epoch)) is not None and note.sealed:
            return True
        return any(self.section.exists(Mark.file_of(epoch, "applied", version)) for version in versions)

    def left_out(self, epoch: int) -> LeftOut | None:
        """The last note of what an epoch goes on without, if there is one."""
        found, number = None, 1
        while (note := read_record(self.section, LeftOut.file_of(epoch, number), LeftOut.from_bytes)) is not None:
            found, number = note, number + 1
        return found

    def leave_out(self, fence: Fence, stages: Iterable[str], text: str) -> LeftOut:
        """The epoch goes on without these stages, and those that it goes on without already. Only before its sinks."""
        known = self.left_out(fence.epoch)
        number = known.number + 1 if known else 1
        every = {*stages, *(known.stages if known else ())}
        note = LeftOut(fence, number, tuple(sorted(every)), text)
        if not self.section.put_if_absent(note.file, note.to_bytes()):
            raise FencedError(
                f"Another driver goes on with epoch {fence.epoch}.",
                safe="Nothing was changed by this one.",
                todo="Stop this driver.",
            )
        return note

    def put_taken(self, taken: Taken) -> None:
        """The sink has the epoch, also for whoever finishes it after us."""
        self.section.put_if_absent(taken.file, taken.to_bytes())

    def taken(self, epoch: int, sinks: Iterable[str]) -> frozenset[str]:
        """Those of the sinks that are known to have the epoch."""
        return frozenset(
            sink for sink in sinks if read_record(self.section, Taken.file_of(epoch, sink), Taken.from_bytes)
        )
