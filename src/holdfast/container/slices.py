"""What a container holds of a job: stages, their operators, and the active slices of each."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import EpochGone, FunctionError
from holdfast.log.records import Prepare
from holdfast.operators.marked import Marked
from holdfast.operators.spec import Operator
from holdfast.operators.stage import StagePlan
from holdfast.state.rows import Rows
from holdfast.state.slice import NEVER, EpochTime, SliceState, Turn
from holdfast.wire.messages import StageFigures


@dataclass
class HeldSlice:
    """A slice's state with the lock of whoever works on it."""

    state: SliceState
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class HostedStage:
    plan: StagePlan
    operator: Operator
    slices: dict[int, HeldSlice] = field(default_factory=dict)

    def held(self, number: int) -> HeldSlice:
        found = self.slices.get(number)
        if found is None:
            raise EpochGone(f"Slice {number} of '{self.plan.name}' is not here.", todo="Ask the master again.")
        return found

    @property
    def tables(self) -> list[str]:
        """Names for the tables of its state, in their order, as copies and packs know them."""
        return [table_name(self.plan.name, number) for number in range(len(self.operator.layouts))]

    def advance(
        self,
        state: SliceState,
        prepare: Prepare,
        parts: Inputs | None,
        peers: Mapping[str, SliceState],
        *,
        anyway: bool = False,
    ) -> None:
        """Bring a slice to the epoch of ``prepare``, with its rows of every input; if ``anyway``, also where nothing
        happens to it."""
        if self.plan.name in prepare.left_out or (not parts and not anyway and self.still(prepare)):
            state.pass_over(prepare.fence.epoch)  # what closes by time does so when it is no more left out
            return
        rows = [self._joined(part) for part in parts or [[] for _ in self.plan.inputs]]
        time = EpochTime(*self._watermarks(prepare), 1000 * prepare.clock)
        try:
            turn, fed = self._turn(prepare), prepare.feedback
            state.apply(prepare.fence.epoch, *rows, time=time, peers=peers, feedback=fed, turn=turn)
        except FunctionError as error:
            raise error.of(self.plan.name) from error

    def pass_over(self, epoch: int, slices: Iterable[int]) -> None:
        """Slices that nothing happens to: not worth a way through the thread table."""
        for held in map(self.held, slices):
            with held.lock:
                if held.state.epoch < epoch:
                    held.state.pass_over(epoch)

    def without_rows(self, slices: Iterable[int], epoch: int) -> None:
        """These slices are there, and have had nothing up to that epoch."""
        for number in slices:
            held = self.slices.setdefault(number, nothing(self, epoch))
            with held.lock:
                while held.state.epoch < epoch:
                    held.state.pass_over(held.state.epoch + 1)

    def still(self, prepare: Prepare) -> bool:
        """Whether nothing happens to a slice that has no rows: time moves on for none of them. That is so by the log
        alone, so every copy of a slice passes over the same epochs."""
        before, after = self._watermarks(prepare)
        moved = before != after or self._turn(prepare) is not None
        return not moved and not self.operator.clocked and not self.operator.sweeps

    def _turn(self, prepare: Prepare) -> Turn | None:
        """What is left out turns when it has rows again: who reads it may be left out, too."""
        name = self.plan.name
        if name in prepare.left_out:
            return None
        return "reset" if name in prepare.resets else "cut" if name in prepare.cuts else None

    def figures(
        self,
        slices: Sequence[int],
        stirred: Sequence[int],
        opened: Sequence[int],
        worked: Sequence[tuple[int, float]],
        *,
        left_out: bool = False,
    ) -> StageFigures:
        """What an epoch left behind: of the ``slices`` that were asked for, those ``stirred`` by it, those whose oldest
        session somebody waits for, and what each took of rows and seconds."""
        states = [held.state for held in list(self.slices.values())]
        counted = {number: dict(self.held(number).state.counts) for number in stirred}
        due = (state.due for state in states) if self.operator.clocked and not left_out else ()
        return StageFigures(
            changed=sum(self.held(number).state.changed for number in slices),
            rows=sum(state.rows for state in states),
            counts={number: counts for number, counts in counted.items() if counts},
            due=min((at for at in due if at is not None), default=None),
            oldest={number: self.held(number).state.oldest for number in opened},
            took=sum(rows for rows, _ in worked),
            seconds=sum(seconds for _, seconds in worked),
        )

    def _watermarks(self, prepare: Prepare) -> tuple[int, int]:
        name = self.plan.name
        return prepare.watermark_before.get(name, NEVER), prepare.watermark_after.get(name, NEVER)

    def _joined(self, part: list[Rows] | Pieces) -> Rows | Pieces | None:
        if isinstance(part, Pieces):
            return part
        return self.operator.concat(part) if part else None


def hosted(plan: StagePlan, known: HostedStage | None = None, *, marked: bool = False) -> HostedStage:
    """A stage by its plan; with the slices of the one that is ``known``, and its operator if that does the same."""
    if known is None:
        return HostedStage(plan, Marked(plan.build()) if marked else plan.build())
    same = plan.operator == known.plan.operator
    return HostedStage(plan, known.operator if same else alike(plan, known), known.slices)


def alike(plan: StagePlan, known: HostedStage) -> Operator:
    """The operator of a plan, with units of its state if the stage that it takes the place of has them."""
    return Marked(plan.build()) if isinstance(known.operator, Marked) else plan.build()


def nothing(stage: HostedStage, epoch: int) -> HeldSlice:
    """A slice of a stage that has had no rows up to that epoch."""
    state = stage.operator.new_slice()
    state.load([], epoch)
    return HeldSlice(state)


def table_name(stage: str, table: int) -> str:
    return f"{stage}#{table}" if table else stage


class Pieces:
    """Rows of a slice that are too many to be in memory together: one piece after the other, once."""

    def __init__(self, pieces: Iterator[Rows]) -> None:
        self.rows = 0
        """Of the pieces that were taken."""
        self._pieces = pieces

    def __iter__(self) -> Iterator[Rows]:
        for piece in self._pieces:
            self.rows += len(piece)
            yield piece


Inputs = Sequence[list[Rows] | Pieces]
"""A slice's rows of an epoch, input by input, in the parts they came in."""


def count(inputs: Inputs | None) -> int:
    """Rows of all inputs, once they have been applied."""
    return sum(part.rows if isinstance(part, Pieces) else sum(map(len, part)) for part in inputs or ())


Stages = Mapping[str, HostedStage]
