"""Stages that were split off others while the job ran: each begins with what its source holds before an epoch.

All stages of a slice are in one place, so a container makes the copy itself, when it comes to that epoch: whoever
applies or replays it finds the same. It may be made twice, since it is of the epoch before: an epoch that is taken back
and applied again needs nothing else.

A source may be gone by now. Then slices from before the split can only be brought on by whoever loads the source too,
from a checkpoint or from nothing (``restore``); backups and slices that lag behind so far are given up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from holdfast.container.slices import HeldSlice, HostedStage, Stages, hosted, nothing
from holdfast.errors import EpochGone
from holdfast.log.graphs import Graphs, Split
from holdfast.operators.stage import StagePlan

Each = Callable[[Sequence[int], Callable[[int], None]], None]
Held = Callable[[int], HeldSlice]
Begun = dict[str, dict[int, HeldSlice]]


def copy(split: Split, slices: Sequence[int], mine: Held, source: Held, each: Each) -> None:
    """Bring these slices of the stage, which are at the epoch before the split, to what they begin with."""

    def run(number: int) -> None:
        held, epoch = mine(number), split.epoch - 1
        if held.state.epoch != epoch or held.state.touched > epoch:
            return  # it is not so far yet, or has it
        other = source(number)
        with other.lock:
            parts = other.state.whole(epoch)
        with held.lock:
            held.state.begin_with(parts, epoch)

    each(slices, run)


def at(epoch: int, splits: Iterable[Split], stages: Stages, slices: Sequence[int], each: Each) -> None:
    """Have all slices begin that are split off in that epoch, which is applied next."""
    for split in splits:
        if split.epoch == epoch and split.stage in stages:
            source = stages.get(split.source)
            mine = stages[split.stage].held
            copy(split, slices, mine, _nowhere(split) if source is None else source.held, each)


def begun(splits: Iterable[Split], stages: Stages, made: Stages, each: Each) -> Begun:
    """What stages begin with that come just now, in the slices that are at the epoch before."""
    found: Begun = {}
    for split in splits:
        source = stages.get(split.source)
        if source is None or split.stage in stages or split.stage not in made:
            continue
        epoch = split.epoch - 1
        numbers = [number for number, held in list(source.slices.items()) if held.state.epoch == epoch]
        mine = found[split.stage] = {number: nothing(made[split.stage], epoch) for number in numbers}
        copy(split, numbers, mine.__getitem__, source.held, each)
    return found


def first(stage: HostedStage, begun: Mapping[int, HeldSlice], epochs: Mapping[int, int]) -> dict[int, HeldSlice]:
    """The slices of a stage that comes just now, each at its epoch."""
    ready = {number: held for number, held in begun.items() if held.state.epoch == epochs.get(number)}
    return {number: ready.get(number) or nothing(stage, epoch) for number, epoch in epochs.items()}


def lost(splits: Iterable[Split], made: Stages, begun: Begun, epochs: Mapping[int, int]) -> list[int]:
    """Slices that lag so far behind that they can not be brought on: the source of a stage is gone."""
    gone = [split for split in splits if split.stage in made and split.source not in made]
    return [
        number
        for number, epoch in epochs.items()
        if any(epoch < split.epoch and number not in begun.get(split.stage, ()) for split in gone)
    ]


def floor(splits: Iterable[Split], stages: Collection[str]) -> int:
    """Below this epoch nothing can be brought on by these stages alone: they lack the source of one of them."""
    return max((one.epoch for one in splits if one.stage in stages and one.source not in stages), default=0)


class Sources:
    """The stages that are gone, and that stages of now were split off: each with the last epoch it is needed for."""

    def __init__(self, graphs: Graphs, splits: Sequence[Split], stages: Stages) -> None:
        self.through: dict[str, int] = {}
        wanted = set(stages)
        for split in reversed(splits):  # a source may have been split off another before
            if split.stage in wanted and split.source not in stages:
                wanted.add(split.source)
                self.through[split.source] = max(split.epoch - 1, self.through.get(split.source, 0))
        plans: dict[str, StagePlan] = {}
        for graph in graphs.later:
            plans |= {one["name"]: StagePlan.from_dict(one) for one in graph.stages if one["name"] in self.through}
        self.stages: Mapping[str, HostedStage] = {name: hosted(plans[name]) for name in self.through}

    def needed(self, epoch: int) -> list[str]:
        """By slices of that epoch."""
        return [name for name, through in self.through.items() if epoch <= through]


def refuse_gone(splits: Iterable[Split], stages: Collection[str], epoch: int) -> None:
    """Of slices at that epoch nothing can be made by these stages alone."""
    if epoch < floor(splits, stages):
        raise EpochGone(
            f"Epoch {epoch} is from before a stage was split off another one that is gone by now.",
            safe="Nothing was changed.",
            todo="Take a later epoch, or bring the slices back from the store.",
        )


def refuse_unborn(splits: Iterable[Split], stage: str, epoch: int) -> None:
    """A copy of that epoch has nothing of the stage, which is not to say that it held nothing."""
    if any(one.stage == stage and epoch < one.epoch for one in splits):
        raise EpochGone(
            f"Stage '{stage}' was split off another one after epoch {epoch}: a copy of then has nothing of it.",
            safe="Reading changes nothing.",
            todo="Ask the slice's owner, or somebody with a later copy.",
        )


def _nowhere(split: Split) -> Held:
    def raises(number: int) -> HeldSlice:
        raise EpochGone(
            f"Slice {number} of '{split.stage}' begins with what '{split.source}' held, which is gone.",
            safe="Nothing was changed.",
            todo="Bring the slice back from the store.",
        )

    return raises
