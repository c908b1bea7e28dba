"""Stages as the log of an epoch knows them: where they stood in the graph that its prepare names.

A stage that did the same then may be brought forward by what the log has of it, under whatever numbers and on whatever
level. Where the job came from that graph while it ran, a stage may also have done its part by another function, which
is then called for that epoch; or it was not there, and had nothing. After any other change a stage that was not there,
or did something else, cannot be brought forward: its state is not what the log of then makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.container.slices import HostedStage, Stages, alike
from holdfast.errors import CorruptionError, StoreError
from holdfast.log.graphs import Graphs
from holdfast.log.records import GraphFile, Manifest, Prepare
from holdfast.operators.stage import StagePlan


@dataclass(frozen=True)
class Then:
    """The stages of now as an epoch of then knows them, in the order of their levels then, and those that it does not
    know."""

    stages: Sequence[HostedStage]
    unborn: Sequence[str] = ()


class FormerGraphs:
    """``version`` is the graph that the ``stages`` are of; ``sources`` are others that are gone by then, and that some
    of them were split off."""

    def __init__(self, graphs: Graphs, version: int, stages: Stages, sources: Stages | None = None) -> None:
        self._graphs, self._version = graphs, version
        self._stages, self._sources = dict(stages), dict(sources or {})
        self._lived = graphs.before(version, live=True)
        self._known: dict[int, Then] = {}

    def unborn(self, manifest: Manifest) -> frozenset[str]:
        """Stages that a checkpoint does not have, because they came later."""
        version = self._graphs.version_of_checkpoint(manifest, self._version)
        if version == self._version or version not in self._lived:
            return frozenset(self._sources)
        return frozenset((self._stages.keys() | self._sources.keys()) - self._plans(version).keys())

    def stages_of(self, prepare: Prepare) -> Then:
        """The stages in the terms of this epoch's prepare. Refuses an epoch that cannot be replayed by those of now."""
        version = self._graphs.version_of(prepare)
        found = self._known.get(version)
        if found is None:
            if version <= self._graphs.newest and not self._graphs.knows(version):
                raise CorruptionError(
                    f"{GraphFile.file_of(version)} is gone, and the log of epoch {prepare.fence.epoch} is in its "
                    "terms: a complete checkpoint above that epoch stands in for both.",
                    safe="Nothing was changed.",
                    todo="Go by that checkpoint; or bring the file back from a copy of the store.",
                )
            then = self._lived_then(version) if version in self._lived else self._then(version, prepare)
            stages = sorted(then.stages, key=lambda stage: stage.plan.level)
            found = self._known[version] = replace(then, stages=stages)
        return found

    def _plans(self, version: int) -> Mapping[str, StagePlan]:
        return {plan.name: plan for plan in map(StagePlan.from_dict, self._graphs.stages(version))}

    def _lived_then(self, version: int) -> Then:
        if version == self._version:
            return Then(list(self._stages.values()))
        plans = self._plans(version)
        stages = []
        every = self._stages | self._sources
        for name, stage in every.items():
            if (plan := plans.get(name)) is not None:
                same = plan.operator == stage.plan.operator
                stages.append(replace(stage, plan=plan, operator=stage.operator if same else alike(plan, stage)))
        return Then(stages, [name for name in every if name not in plans])

    def _then(self, version: int, prepare: Prepare) -> Then:
        if version > self._graphs.newest:
            raise StoreError(
                f"Epoch {prepare.fence.epoch} was prepared for {GraphFile.file_of(version)}, a later graph of the job "
                "than the one that runs here.",
                safe="Nothing was changed.",
                todo="Leave the job to the driver that has changed it.",
            )
        plans: Mapping[str, StagePlan] = {}
        between = [one for one in self._graphs.before(self._version) if version <= one < self._version]
        for one in reversed(between):  # what was dropped in between did not go on
            found = self._plans(one)
            plans = plans or found
            for name, stage in self._stages.items():
                if name not in found:
                    raise self._refused(prepare, one, f"stage '{name}' was not part of it")
                if found[name].operator.essence() != stage.plan.operator.essence():
                    raise self._refused(prepare, one, f"stage '{name}' did something else")
        return Then([replace(stage, plan=plans[name]) for name, stage in self._stages.items()])

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
