"""Reading the slices of a job as of a committed epoch, and the pins that keep one readable.

A pin is a lease: it ends by itself, and when undo sets take too much memory all but a checkpoint's are dropped. So a
reader that went away, or one that is slow, can never make a container run out of memory; its next read says so.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import pyarrow as pa

from holdfast.container.slices import Stages
from holdfast.errors import EpochGone
from holdfast.log.pack import SliceState as PackedSlice
from holdfast.state import copies
from holdfast.state.slice import MAIN, Mode

LEASE_SECONDS = 60.0
PINNED_BYTES = 1 << 30
PART_SLOTS = 65_536
"""Slots of one part of a copy: the longest that whoever takes one holds a slice's lock."""


class Reading:
    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._pins: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def outputs(
        self, stage_name: str, slices: Sequence[int], epoch: int, mode: Mode | Literal["read"], port: str = MAIN
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The output rows of each slice, one batch a slice, in slice order."""
        stage = self._stages[stage_name]
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
        operator = self._stages[stage_name].operator
        if mode == "read":
            return operator.state_schema
        schema = operator.empty(port).schema
        return schema.append(pa.field("_d", pa.int8())) if mode == "changelog" else schema

    def get(self, stage_name: str, number: int, epoch: int, keys: pa.RecordBatch) -> pa.RecordBatch:
        stage = self._stages[stage_name]
        held = stage.held(number)
        with held.lock:
            return held.state.read(epoch, stage.operator.decode_keys(keys))

    def part(self, stage_name: str, table: int, number: int, base: int, epoch: int, start: int) -> pa.RecordBatch:
        """One part of the delta (base, epoch] of a table of a slice."""
        held = self._stages[stage_name].held(number)
        with held.lock:
            return held.state.delta(base, epoch, start, PART_SLOTS, table)

    def packed(self, epoch: int, slices: Sequence[int]) -> Iterator[PackedSlice]:
        """Full copies of slices of all stages as of ``epoch``."""
        for name, stage in self._stages.items():
            for at, table in enumerate(stage.tables):
                for number in slices:
                    parts = [self.part(name, at, number, 0, epoch, 0)]
                    while not (header := copies.header_of(parts[-1])).last:
                        parts.append(self.part(name, at, number, 0, epoch, header.stop))
                    yield PackedSlice(table, number, epoch, copies.whole(parts))

    # --- pins ---------------------------------------------------------------------------------------------

    def pin(self, reader: str, epoch: int, seconds: float = LEASE_SECONDS) -> None:
        """Keep ``epoch`` readable until ``unpin``, or until the lease runs out or costs too much memory."""
        with self._lock:
            self._pins[reader] = (epoch, time.monotonic() + seconds)

    def renew(self, reader: str) -> None:
        """Another lease for a reader that gets on; one that was dropped stays dropped."""
        with self._lock:
            if reader in self._pins:
                self._pins[reader] = (self._pins[reader][0], time.monotonic() + LEASE_SECONDS)

    def unpin(self, reader: str, committed: int) -> None:
        with self._lock:
            self._pins.pop(reader, None)
        self.release(committed)

    def release(self, committed: int) -> None:
        """Let go of what could undo committed epochs, except where a reader has one pinned."""
        now = time.monotonic()
        every = [held for stage in self._stages.values() for held in list(stage.slices.values())]
        with self._lock:
            self._pins = {reader: pin for reader, pin in self._pins.items() if pin[1] > now}
            if self._pins and sum(held.state.undo_nbytes for held in every) > PINNED_BYTES:
                self._pins = {reader: pin for reader, pin in self._pins.items() if pin[1] == math.inf}
            through = min([committed, *(epoch for epoch, _ in self._pins.values())])
        for held in every:
            with held.lock:
                held.state.release(through)
