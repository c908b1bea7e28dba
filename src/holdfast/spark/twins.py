"""Equal stages of several jobs: the same operator over the same rows, by what Spark makes of the steps before it.

Names of stages count for nothing, and neither does how a step was written: rows of a source are compared by the filter
and the columns that a pass would have for them, all others by their plans as Spark has resolved them. Two stages over a
stage are equal only if that is one stage too, so twins are found from below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from holdfast.plan.compile import PlannedStage, StageInput
from holdfast.plan.graph import Node, Output, Source, Stage, leaves
from holdfast.spark.one_pass import Likeness
from holdfast.spark.stream import read_alone

Signature = tuple[object, ...]


class Twins:
    def __init__(self) -> None:
        self._frames: dict[tuple[Stage, str], Any] = {}
        self._likeness: dict[Source, Likeness] = {}
        self._unlike: list[DataFrame] = []
        """Frames that only Spark can compare: each stands for all that are the same."""
        self._known: dict[Signature, list[Stage]] = {}
        self._apart: set[Stage] = set()

    def frame(self, output: Output, make: Callable[[], Any]) -> Any:
        """The rows of an output as all who read it know them: one frame, so that what is made of it can be compared."""
        key = (output.stage, output.port)
        if key not in self._frames:
            self._frames[key] = make()
        return self._frames[key]

    def of(self, planned: PlannedStage, known: str | None = None) -> Stage:
        """The stage that does the same, if there is one; else itself, from now on known. Several may, which have other
        rows in them: then it is the one that has the name by which it is ``known``."""
        time = planned.plan.time
        signature = (
            planned.plan.level,
            repr(planned.plan.operator.essence()),
            tuple(planned.outputs),
            replace(time, observed=()),
            *(self._read(item) for item in planned.inputs),
        )
        alike = self._known.setdefault(signature, [])
        named = [stage for stage in alike if known is not None and stage.name == known]
        others = [stage for stage in alike if known is None and stage not in self._apart]
        if named or others:
            return (named or others)[0]
        alike.append(planned.node)
        return planned.node

    def keep_apart(self, stage: Stage) -> None:
        """Only who is known by its name is one with it."""
        self._apart.add(stage)

    def forget(self, gone: Stage) -> None:
        """It is not what it was, or not there any more."""
        self._apart.discard(gone)
        for alike in self._known.values():
            alike[:] = [stage for stage in alike if stage is not gone]

    def as_rows_of(self, old: Stage, new: Stage) -> None:
        """What the new stage puts out looks like what the old one does."""
        self._frames |= {(new, port): frame for (stage, port), frame in self._frames.items() if stage is old}

    def forget_rows(self, gone: Stage) -> None:
        self._frames = {key: frame for key, frame in self._frames.items() if key[0] is not gone}

    def _read(self, item: StageInput) -> Signature:
        """Equal for inputs of the same rows, with the same looks at event times."""
        frames = self.leaf_frames(item.node)
        reader = read_alone(item, frames)
        compared = [reader.rows, *(look.times for look in reader.looks)]
        below = tuple((leaf.stage, leaf.port) if isinstance(leaf, Output) else leaf for leaf in frames)
        return (below, item.time, item.ahead, len(item.observed), *(self._alike(frames, one) for one in compared))

    def _alike(self, frames: Mapping[Node, DataFrame], rows: DataFrame) -> object:
        leaf, *others = frames
        if not others and isinstance(leaf, Source):
            likeness = self._likeness.setdefault(leaf, Likeness(leaf.frame))
            if (found := likeness.of(rows)) is not None:
                return found
        for number, other in enumerate(self._unlike):
            if other.sameSemantics(rows):
                return number
        self._unlike.append(rows)
        return len(self._unlike) - 1

    def leaf_frames(self, node: Node) -> dict[Node, DataFrame]:
        found: dict[Node, DataFrame] = {}
        for leaf in leaves(node):
            found[leaf] = self._frames[leaf.stage, leaf.port] if isinstance(leaf, Output) else leaf.frame
        return found
