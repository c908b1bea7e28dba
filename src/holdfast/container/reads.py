"""Reading the slices of a job as of a committed epoch, and the pins that keep one readable.

A pin is a lease: it ends by itself unless whoever reads renews it, and when undo sets take too much memory it is given
up. So a reader that went away, or one that is slow, can never make a container run out of memory; its next read says
why. Readers go first. A checkpoint's pin stays until what it costs is more than the state itself: else the state that
needs checkpoints most would never have one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from holdfast.container.slices import HeldSlice, HostedStage, Stages
from holdfast.errors import EpochGone
from holdfast.log.pack import SliceState as PackedSlice
from holdfast.state import copies
from holdfast.state.slice import MAIN, Mode

LEASE_SECONDS = 60.0
PINNED_BYTES = 1 << 30
"""What may be held back for pins, undo sets and outputs of epochs that are over; more, and readers' pins go."""
GIVEN_UP_KEPT = 100
PART_SLOTS = 65_536
"""Slots of one part of a copy: the longest that whoever takes one holds a slice's lock."""


@dataclass(frozen=True)
class Pin:
    epoch: int
    until: float
    seconds: float
    last: bool
    """It goes after all others."""


class Reading:
    def __init__(self, stages: Stages, pinned_bytes: int = PINNED_BYTES) -> None:
        self._stages = stages
        self._pinned_bytes = pinned_bytes
        self._pins: dict[str, Pin] = {}
        self._given_up: OrderedDict[str, int] = OrderedDict()  # readers that cost too much, and how much that was
        self._lock = threading.Lock()

    def stage(self, name: str) -> HostedStage:
        found = self._stages.get(name)
        if found is None:
            raise EpochGone(
                f"Stage '{name}' is not part of the job any more.",
                safe="Reading changes nothing.",
                todo="It was removed while the job ran: run.status() has the stages that there are.",
            )
        return found

    def outputs(
        self,
        stage_name: str,
        slices: Sequence[int],
        epoch: int,
        mode: Mode | Literal["read"],
        port: str = MAIN,
        reader: str = "",
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The output rows of each slice, one batch a slice, in slice order."""
        try:
            yield from self._outputs(stage_name, slices, epoch, mode, port)
        except EpochGone as error:
            raise self.explained(reader, error) from error

    def _outputs(
        self, stage_name: str, slices: Sequence[int], epoch: int, mode: Mode | Literal["read"], port: str
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        stage = self.stage(stage_name)
        for number in slices:
            held = stage.held(number)
            with held.lock:
                if mode == "read":
                    batch = held.state.read(epoch)
                else:
                    if held.state.epoch != epoch:
                        raise EpochGone(
                            f"Slice {number} of '{stage_name}' is at epoch {held.state.epoch}, not {epoch}.",
                            todo="Ask the master again.",
                        )
                    batch = held.state.outputs(epoch, mode, port)
            yield number, batch

    def schema(self, stage_name: str, mode: Mode | Literal["read"], port: str) -> pa.Schema:
        operator = self.stage(stage_name).operator
        if mode == "read":
            return operator.state_schema
        schema = operator.empty(port).schema
        return schema.append(pa.field("_d", pa.int8())) if mode == "changelog" else schema

    def get(self, stage_name: str, number: int, epoch: int, keys: pa.RecordBatch) -> pa.RecordBatch:
        stage = self.stage(stage_name)
        held = stage.held(number)
        with held.lock:
            return held.state.read(epoch, stage.operator.decode_keys(keys))

    def part(
        self, stage_name: str, table: int, number: int, base: int, epoch: int, start: int
    ) -> tuple[copies.Header, copies.Picked]:
        """One part of the delta (base, epoch] of a table of a slice."""
        held = self.stage(stage_name).held(number)
        with held.lock:
            return held.state.part(base, epoch, start, PART_SLOTS, table)

    def packed(self, epoch: int, slices: Sequence[int]) -> Iterator[PackedSlice]:
        """Full copies of slices of all stages as of ``epoch``."""
        for name, stage in list(self._stages.items()):
            for at, table in enumerate(stage.tables):
                for number in slices:
                    parts = [self.part(name, at, number, 0, epoch, 0)]
                    while not (header := parts[-1][0]).last:
                        parts.append(self.part(name, at, number, 0, epoch, header.stop))
                    whole = copies.whole([copies.labelled(copies.encode([rows]), header) for header, rows in parts])
                    yield PackedSlice(table, number, epoch, whole)

    # --- pins ---------------------------------------------------------------------------------------------

    def pin(self, reader: str, epoch: int, seconds: float = LEASE_SECONDS, *, last: bool = False) -> None:
        """Keep ``epoch`` readable until ``unpin``, or until the lease runs out or costs too much memory."""
        with self._lock:
            self._pins[reader] = Pin(epoch, time.monotonic() + seconds, seconds, last)

    def renew(self, reader: str) -> bool:
        """Another lease for a reader that gets on; one that was dropped stays dropped."""
        with self._lock:
            pin = self._pins.get(reader)
            if pin is not None:
                self._pins[reader] = replace(pin, until=time.monotonic() + pin.seconds)
            return pin is not None

    def unpin(self, reader: str, committed: int) -> None:
        with self._lock:
            self._pins.pop(reader, None)
        self.release(committed)

    def release(self, committed: int) -> None:
        """Let go of what could undo committed epochs, except where a reader has one pinned."""
        now = time.monotonic()
        every = [held for stage in list(self._stages.values()) for held in list(stage.slices.values())]
        with self._lock:
            self._pins = {reader: pin for reader, pin in self._pins.items() if pin.until > now}
            if self._pins:
                self._afford(every)
            through = min([committed, *(pin.epoch for pin in self._pins.values())])
        for held in every:
            with held.lock:
                held.state.release(through)

    def _afford(self, every: Sequence[HeldSlice]) -> None:
        """Give pins up that cost too much. What goes with them is known the next time, and so whether others must.

        Those that hold nothing back, because one of the last to go has an older epoch, cost nothing and stay.
        """
        kept = sum(held.state.undo_nbytes for held in every)
        if kept <= self._pinned_bytes:
            return
        anyway = min((pin.epoch for pin in self._pins.values() if pin.last), default=None)
        dear = [reader for reader, pin in self._pins.items() if not pin.last and (anyway is None or pin.epoch < anyway)]
        if not dear and kept > max(self._pinned_bytes, sum(held.state.nbytes for held in every) - kept):
            dear = [reader for reader, pin in self._pins.items() if pin.last and pin.epoch == anyway]
        for reader in dear:
            del self._pins[reader]
            self._given_up[reader] = kept
        while len(self._given_up) > GIVEN_UP_KEPT:
            self._given_up.popitem(last=False)

    def explained(self, reader: str, error: EpochGone) -> EpochGone:
        """Why the epoch is gone, if that was this reader's doing."""
        with self._lock:
            kept = self._given_up.get(reader)
        if kept is None:
            return error
        return EpochGone(
            f"A read that was too slow was given up: what it held back had come to {kept >> 20:,} MiB on a container.",
            safe="The state itself is complete; reading changes nothing.",
            todo="Read again; if it is always too slow, read fewer rows at a time, or with longer epochs.",
        )
