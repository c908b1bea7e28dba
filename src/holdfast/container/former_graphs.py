"""Stages as the log of an epoch knows them: where they stood in the graph that its prepare names.

A stage that did the same then may be brought forward by what the log has of it, under whatever numbers and on whatever
level. One that was not there, or did something else, cannot: its state is not what the log of then makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.container.slices import HostedStage, Stages
from holdfast.errors import StoreError
from holdfast.log.graphs import Graphs
from holdfast.log.records import GraphFile, Prepare
from holdfast.operators.stage import StagePlan


class FormerGraphs:
    def __init__(self, graphs: Graphs, stages: Stages) -> None:
        self._graphs = graphs
        self._stages = stages
        self._known: dict[int, Sequence[HostedStage]] = {}

    def stages_of(self, prepare: Prepare) -> Sequence[HostedStage]:
        """The stages in the terms of this epoch's prepare, in the order of their levels then. Refuses an epoch that
        cannot be replayed by those of now."""
        version = self._graphs.version_of(prepare)
        found = self._known.get(version)
        if found is None:
            stages = self._stages_of(version, prepare)
            found = self._known[version] = sorted(stages, key=lambda stage: stage.plan.level)
        return found

    def _stages_of(self, version: int, prepare: Prepare) -> Sequence[HostedStage]:
        if version == self._graphs.newest:
            return list(self._stages.values())
        if version > self._graphs.newest:
            raise StoreError(
                f"Epoch {prepare.fence.epoch} was prepared for {GraphFile.file_of(version)}, a later graph of the job "
                "than the one that runs here.",
                safe="Nothing was changed.",
                todo="Leave the job to the driver that has changed it.",
            )
        plans: Mapping[str, StagePlan] = {}
        for one in range(version, self._graphs.newest):  # what was dropped in between did not go on
            former = [StagePlan.from_dict(plain) for plain in self._graphs.stages(one)]
            found = {plan.name: plan for plan in former}
            plans = plans or found
            for name, stage in self._stages.items():
                if name not in found:
                    raise self._refused(prepare, one, f"stage '{name}' was not part of it")
                if found[name].operator.essence() != stage.plan.operator.essence():
                    raise self._refused(prepare, one, f"stage '{name}' did something else")
        return [replace(stage, plan=plans[name]) for name, stage in self._stages.items()]

    def _refused(self, prepare: Prepare, version: int, why: str) -> StoreError:
        where = GraphFile.file_of(version) if version else "job.json"
        began = self._graphs.later[-1] if self._graphs.later else None
        packs = f" of epoch {began.epoch} back from a copy of the store: {', '.join(began.packs)}" if began else ""
        return StoreError(
            f"The log of epoch {prepare.fence.epoch} cannot be replayed: it is in terms of a graph that the job had "
            f"before it was changed ({where}), and {why} then.",
            safe="Nothing was changed.",
            todo=f"Bring the checkpoint{packs}." if began and began.packs else "Start the job as it was then.",
        )
