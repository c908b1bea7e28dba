"""What Spark runs of a hub: its sources as they are, and everything that jobs make of them behind ``foreachBatch``.

A job's own plan has the stateless steps in the streaming plan, where filters can be pushed into the source. A hub gives
that up, so that the query never has to start again: whatever job comes, goes or changes, Spark reads the same columns
of the same sources, at the same places of its checkpoint. A pass over them is drawn once for a graph and made over the
rows of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame

from holdfast.plan.graph import Node, Sink, Source, evaluate, leaves
from holdfast.plan.passes import Crossing
from holdfast.plan.tagging import Tagging
from holdfast.spark.one_pass import Pass
from holdfast.spark.stream import JobPlan, Takers, one_pass, read_alone, rows_of, together, untagged

MANY_FILTERS = 16


@dataclass(frozen=True, eq=False)
class HubPlan(JobPlan):
    filters_in_stream = False
    stages_may_come = True
    sources: tuple[Source, ...] = ()

    @property
    def places(self) -> list[Source]:
        return list(self.sources)

    @property
    def passes(self) -> bool:
        """Not in the streaming plan."""
        return False

    def stream(self) -> DataFrame:
        return self._together[0]

    @cached_property
    def _together(self) -> tuple[DataFrame, Tagging | None]:
        return together([source.frame for source in self.sources])

    def _sources_in(self, rows: DataFrame) -> dict[Node, DataFrame]:
        tagging = self._together[1]
        if tagging is None:
            return {self.sources[0]: rows}
        return {source: untagged(rows, tagging, at) for at, source in enumerate(self.sources)}

    @cached_property
    def _pass(self) -> tuple[Pass, Takers] | None:
        """One for all sources: which of them a row is of is one more filter."""
        root = self.stream()
        frames = self._sources_in(root)
        alone = {number: read_alone(item, _of(item.node, frames)) for number, item in enumerate(self.intake(1))}
        return one_pass(root, alone)

    def draw(self) -> None:
        _ = self._pass

    @property
    def _taken(self) -> Takers:
        return self._pass[1] if self._pass is not None else ()

    @property
    def reads(self) -> dict[str, int]:
        """Once for the pass, and once for each place in what everybody else reads."""
        passed = {number for number, _ in self._taken}
        apart = [item.node for number, item in enumerate(self.intake(1)) if number not in passed]
        apart += [sink.node for sink in self.stateless_sinks]
        times = sum(len(list(leaves(node))) for node in apart) + (self._pass is not None)
        return {source.name: times for source in self.sources}

    def stage_rows(self, batch: DataFrame) -> tuple[DataFrame, Crossing | None]:
        self._set_up(batch)
        items = self.intake(1)
        rows: list[DataFrame] = []
        takers: list[Takers] = []
        if self._pass is not None:
            rows.append(self._pass[0].over_some(batch))
            takers.append(self._taken)
        if apart := sorted(set(range(len(items))) - {number for number, _ in self._taken}):
            frames = self._sources_in(batch)
            rows += [rows_of(items[number], _of(items[number].node, frames)) for number in apart]
            takers += [((number, None),) for number in apart]
        union, tagging = together(rows)
        return union, Crossing(tagging, tuple(takers)) if len(items) > 1 else None

    def _set_up(self, batch: DataFrame) -> None:
        """In a pass a condition is a column: Spark must not compute what several share ahead of it. And many conditions
        in one generated method are more than the JVM compiles: then each is better off for itself."""
        conf, many = batch.sparkSession.conf, self._pass is not None and self._pass[0].filters > MANY_FILTERS
        conf.set("spark.sql.subexpressionElimination.enabled", "false")
        conf.set("spark.sql.codegen.wholeStage", str(not many).lower())

    def branch(self, batch: DataFrame, sink: Sink) -> DataFrame:
        return evaluate(sink.node, _of(sink.node, self._sources_in(batch)))


class OpenPlan(HubPlan):
    """Of one job whose filters are to be changed while it runs: its stages are those that it was drawn with."""

    stages_may_come = False


def _of(node: Node, frames: Mapping[Node, DataFrame]) -> dict[Node, DataFrame]:
    return {leaf: frames[leaf] for leaf in leaves(node)}
