"""The slices of a run in this process, and their way back when a crash has taken them.

What a container does with a slice is done here by the same code: rows come out of the log's bytes (``LogReader``), go
into slices (``HostedStage.advance``), and copies leave as deltas. Every other epoch's are kept, so that a lost slice
comes back as in a real recovery: from a copy that is behind, and the log above it. It is then held against what was
lost; a function that looks at the time of day, say, does not get away with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from holdfast.container.log_reader import LogReader
from holdfast.container.slices import HeldSlice, HostedStage
from holdfast.container.staging import Staging
from holdfast.errors import EpochGone, FunctionError, PlanError
from holdfast.invariants import some
from holdfast.log.records import Prepare
from holdfast.operators.stage import StagePlan
from holdfast.state.slice import Mode, SliceState
from holdfast.testing.comparing import difference

if TYPE_CHECKING:
    from holdfast.log.ledger import Ledger

PLACES = ("after-prepare", "mid-apply", "after-commit", "all")
"""Where a run can crash. "all" is everything at once, in the middle of an epoch; the others lose half of the slices."""
COPY_EVERY = 2


def checked_place(place: str) -> str:
    if place not in PLACES:
        raise PlanError(f"A run cannot crash at '{place}'.", todo=f"The places are: {', '.join(PLACES)}.")
    return place


class MemoryLog:
    """Prepares as the bytes that a store would have, rows inside."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put(self, prepare: Prepare) -> Prepare:
        self._files[prepare.file] = prepare.to_bytes()
        return self.get(prepare.fence.epoch, prepare.level)

    def get(self, epoch: int, level: int) -> Prepare:
        return some(self.get_prepare(epoch, level), f"epoch {epoch}.{level} was never prepared")

    def get_prepare(self, epoch: int, level: int) -> Prepare | None:
        name = Prepare.file_of(epoch, level)
        return Prepare.from_bytes(self._files[name], name) if name in self._files else None

    def drop(self, epoch: int, levels: int) -> None:
        for level in range(1, levels + 1):
            self._files.pop(Prepare.file_of(epoch, level), None)


@dataclass
class Copy:
    """A stage's slice as of ``epoch``: a full copy and the deltas after it, as they would travel."""

    epoch: int = 0
    parts: list[bytes] = field(default_factory=list)

    def take(self, state: SliceState, epoch: int, tables: int) -> None:
        for table in range(tables):
            self.parts.append(_packed(state.delta(self.epoch, epoch, table=table)))
        self.epoch = epoch

    def load(self, state: SliceState) -> None:
        if self.parts:
            state.load([_unpacked(part) for part in self.parts], self.epoch)


Lost = Mapping[tuple[str, int], Mapping[str, pa.RecordBatch]]
"""What (stage, slice) held, by what it is."""


class Plane:
    """All slices of all stages, with the copies and the log that outlive them."""

    def __init__(self, stages: Sequence[StagePlan], ports: Mapping[str, Sequence[str]], slices: int) -> None:
        self.log = MemoryLog()
        self.levels = max(stage.level for stage in stages)
        self.slices = slices
        self._ports = ports
        # What the reader asks of a ledger is one prepare at a time; rows are inside.
        self._reader = LogReader(cast("Ledger", self.log), Staging(0), slices)
        self._copies = {(stage.name, number): Copy() for stage in stages for number in range(slices)}
        self._plans = [stage.to_dict() for stage in stages]
        self._stages = self._hosted()

    def _hosted(self) -> dict[str, HostedStage]:
        """All stages with no state, from the plain data that containers are sent of them."""
        found = {}
        for plan in map(StagePlan.from_dict, self._plans):
            operator = plan.build()
            held = {number: HeldSlice(operator.new_slice()) for number in range(self.slices)}
            found[plan.name] = HostedStage(plan, operator, held)
        return found

    # --- an epoch -----------------------------------------------------------------------------------------

    def apply(self, prepare: Prepare, numbers: Sequence[int] | None = None) -> None:
        """Bring slices of the prepare's level to its epoch, those that are not there yet."""
        epoch = prepare.fence.epoch
        for stage in [one for one in self._stages.values() if one.plan.level == prepare.level]:
            every = range(self.slices) if numbers is None else numbers
            behind = [number for number in every if stage.held(number).state.epoch < epoch]
            for group in self._reader.groups(stage, prepare, behind):
                rows = self._reader.inputs_of(stage, prepare, group)
                for number in group.slices:
                    peers = {name: self._state(name, number) for name in stage.plan.peers}
                    stage.advance(stage.held(number).state, prepare, rows.get(number), peers)

    def undo(self, epoch: int) -> None:
        """The epoch never was."""
        for stage in self._stages.values():
            for held in stage.slices.values():
                if held.state.epoch == epoch:
                    held.state.undo()
        self.log.drop(epoch, self.levels)

    def commit(self, epoch: int) -> None:
        for name, stage in self._stages.items():
            for number, held in stage.slices.items():
                if epoch % COPY_EVERY == 0:
                    self._copies[name, number].take(held.state, epoch, len(stage.operator.layouts))
                held.state.release(epoch - 1)

    # --- what there is ------------------------------------------------------------------------------------

    def outputs(self, stage: str, port: str, epoch: int, mode: Mode) -> pa.Table:
        held = self._stages[stage].slices
        return pa.Table.from_batches([held[number].state.outputs(epoch, mode, port) for number in range(self.slices)])

    def read(self, stage: str, epoch: int) -> pa.Table:
        held = self._stages[stage].slices
        return pa.Table.from_batches([held[number].state.read(epoch) for number in range(self.slices)])

    def get(self, stage: str, key: pa.RecordBatch, epoch: int) -> pa.RecordBatch:
        """The rows of one key, which has its hash in ``_h``."""
        hosted = self._stages[stage]
        number = key.column("_h")[0].as_py() % self.slices
        return hosted.held(number).state.read(epoch, hosted.operator.decode_keys(key))

    def counts(self, level: int) -> dict[str, Counter[str]]:
        """What the last epoch counted, stage by stage."""
        found: dict[str, Counter[str]] = {}
        for name, stage in self._stages.items():
            if stage.plan.level == level:
                found[name] = sum((Counter(held.state.counts) for held in stage.slices.values()), Counter[str]())
        return found

    def oldest(self, stage: str) -> int | None:
        """Since when the oldest session is open."""
        found = [held.state.oldest for held in self._stages[stage].slices.values()]
        return min((began for began in found if began is not None), default=None)

    @property
    def due(self) -> int | None:
        """When the clock alone makes a slice do something, µs."""
        states = [held.state for stage in self._stages.values() for held in stage.slices.values()]
        return min((state.due for state in states if state.due is not None), default=None)

    # --- a crash ------------------------------------------------------------------------------------------

    def crash(self, numbers: Sequence[int], committed: int, level: int, *, restart: bool = False) -> None:
        """Lose these slices and bring them back: to ``committed``, and of the epoch after it the levels up to this.

        With ``restart`` the operators go too, and what a user's objects may have kept for themselves with them.
        """
        lost = {(name, number): self._seen(name, number, committed) for name in self._stages for number in numbers}
        if restart:
            self._stages = self._hosted()
        for stage in self._stages.values():
            for number in numbers:
                state = stage.operator.new_slice()
                self._copies[stage.plan.name, number].load(state)
                stage.slices[number] = HeldSlice(state)
        first = 1 + min(self._copies[name, number].epoch for name, number in lost)
        for epoch in range(first, committed + 1):
            for replayed in range(1, self.levels + 1):
                self.apply(self.log.get(epoch, replayed), numbers)
                for name, number in lost:
                    self._state(name, number).release(epoch - 1)
        for replayed in range(1, level + 1):
            self.apply(self.log.get(committed + 1, replayed), numbers)
        self._compare(lost, committed)

    def _seen(self, stage: str, number: int, committed: int) -> dict[str, pa.RecordBatch]:
        """What can be compared of a slice: its rows, and what its last epoch has put out where that is still known."""
        state = self._state(stage, number)
        seen = {"holds": state.read(committed)}
        for port in self._ports[stage]:
            with suppress(EpochGone):
                seen[f"put out in epoch {state.epoch}{port and f' as {port}'}"] = state.outputs(
                    state.epoch, "changelog", port
                )
        return seen

    def _compare(self, lost: Lost, committed: int) -> None:
        for (stage, number), before in lost.items():
            after = self._seen(stage, number, committed)
            for what, rows in before.items():
                told = (
                    difference(_table(after[what]), _table(rows), ordered=True, tolerance=0) if what in after else None
                )
                if told is not None:
                    raise FunctionError(
                        f"Brought back from the log, slice {number} of stage '{stage}' {what} other rows than it had.\n"
                        f"{told}",
                        safe="Nothing was compared by the test yet.",
                        todo="A function of process must depend on its rows, its state and its context alone: no clock "
                        "of its own (context.clock has one), no random numbers, nothing that it keeps for itself.",
                    )

    def _state(self, stage: str, number: int) -> SliceState:
        return self._stages[stage].held(number).state


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _unpacked(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()
