"""Another graph for a job that runs: stages and sinks come and go, functions and filters are replaced.

Between two epochs, while none is in flight, the new graph is written to the store (``graph/<n>.json``) and everything
in the driver goes on by it. Containers hear of it by the next prepare, which names it; that is when it begins to count.
A driver that dies in between has changed nothing: whoever starts next finds a graph that no prepare names, and goes on
by the one before. No shape of any state changes, so nothing is converted, and no checkpoint is written.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast import faults
from holdfast.container.messages import Host
from holdfast.driver.endpoint import Questions
from holdfast.driver.found import refuse_moved
from holdfast.driver.open_sinks import Folders, open_sinks, over_source, over_stages, sinks_of, source_sinks_of, without
from holdfast.driver.options import Options
from holdfast.driver.units import not_under_eventual
from holdfast.errors import FencedError, PlanError
from holdfast.log.past import Past
from holdfast.log.records import GraphFile
from holdfast.master import events as ev
from holdfast.master.feed import SinksChanged
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.plan.changes import compare, mapping
from holdfast.plan.layout import layout_of
from holdfast.plan.loops import layout_of as rounds_layout_of
from holdfast.safety.policies import Shards

if TYPE_CHECKING:
    from holdfast.driver.live_job import LiveJob
    from holdfast.spark.stream import JobPlan

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Update:
    """A change of a running job: the version of its graph, and the first epoch that it is in force for."""

    version: int
    epoch: int


class LiveChanges:
    def __init__(self, run: LiveJob, questions: Questions, host: Host, options: Options) -> None:
        self._run, self._questions, self._host, self._options = run, questions, host, options
        self._changing = threading.Lock()
        self.version = 0
        """Of the graph that the run was changed to last; 0: it never was. It counts when a prepare names it."""
        places = (place.number for stage in run.plan.stages for place in stage.inputs)
        self._used = max([Past.of(run.ledger.graphs()).input, *places])

    def change(
        self,
        plan: JobPlan,
        told: Sequence[str],
        by: str = "",
        reset: Collection[str] = (),
        splits: Mapping[str, str] = MappingProxyType({}),
        idle: Collection[str] = (),
        taken: Callable[[], None] = lambda: None,
    ) -> Update:
        """Have that plan from the next epoch on. Returns when a prepare names it: then nothing takes it back.

        ``told`` is for people, ``by`` whom it was asked for. ``reset`` are stages that the epoch empties, ``splits``
        those that go on with what others hold before it, ``idle`` those that go along without rows. ``taken`` is called
        when the next epoch will have it: whoever waits for that may be interrupted.
        """
        run = self._run
        not_under_eventual("Changing a job while it runs", self._options)
        self.refuse_inside()
        with self._changing, contextlib.ExitStack() as between:
            run.refuse_stopped()
            plan = self._fitted(plan, reset, splits)  # all that takes time, before an epoch has to wait for it
            limits = _limits(_with_splits(run.plan.stages, splits))
            cut = [stage.name for stage in plan.stages if _limit(stage) < limits.get(stage.name, 0)]
            plan.draw()
            come = [sink for sink in plan.sinks if sink.name not in run.jobs.sinks]
            opened = open_sinks(run.spark, run.ledger.store, run.file, come)
            folders = Folders(run.spark, run.file, run.ledger.store.uri, run.shell.history)
            self._await_rest(between)
            with between:
                over, epoch, log = over_source(plan), run.shell.machine.committed + 1, run.jobs.log
                source = run.jobs.blocks.sinks
                refuse_moved([name for name in opened if name in over and name in log.sinks.counters])
                log.sinks.learns(source, set(opened).difference(over))
                folders.take([sink for name, sink in opened.items() if name not in over], log.sinks)
                folders.take([sink for name, sink in opened.items() if name in over], source)
                turns = [set(log.resets), set(log.cuts)]  # what a source still has before it, so has what is split off
                begun = ({*one, *(new for new in splits if splits[new] in one)} for one in turns)
                resets, cuts = (sorted({*one, *new}) for one, new in zip(begun, (reset, cut), strict=True))
                graph = replace(self._graph(plan, told), by=by, turns=_said(resets=resets, cuts=cuts, idle=[*idle]))
                if splits:
                    graph = replace(graph, splits=dict(splits), splits_at=epoch)
                self._put(graph)
                self._follow(plan, graph, opened, idle)
                log.resets, log.cuts = tuple(resets), tuple(cuts)
                taken()
            self._await_begun(epoch)
        return Update(graph.version, epoch)

    def refuse_inside(self) -> None:
        if self._run.shell.inside:
            raise PlanError(
                "A job cannot be changed from inside a sink: the change would wait for the epoch, which waits for it.",
                safe="Nothing was changed.",
                todo="Change it from another thread.",
            )

    def go_on_without(self, epoch: int, stages: Collection[str], text: str) -> bool:
        """In an epoch in which one of these stages raised: the epoch, and those after it, go on without them."""
        run = self._run
        if not run.jobs.log.leave_out(epoch, stages, text):
            return False
        run.shell.tell(ev.SinksLeftOut(without(run.plan, run.jobs.log.left_out)))
        return True

    def go_on_with(self, stages: Collection[str]) -> Update:
        """From the next epoch on these stages get rows again."""
        run, log = self._run, self._run.jobs.log
        with self._changing, contextlib.ExitStack() as between:
            self._await_rest(between)
            with between:
                log.left_out = tuple(name for name in log.left_out if name not in stages)
                run.shell.tell(ev.SinksLeftOut(without(run.plan, log.left_out)))
                run.shell.hurry()
                epoch = run.shell.machine.committed + 1
            self._await_begun(epoch)
        graph = run.ledger.graph()
        return Update(graph.version if graph else 0, epoch)

    def _await_begun(self, epoch: int) -> None:
        run = self._run
        while not run.shell.wait_for(lambda: run.shell.machine.begun >= epoch, LOOK_SECONDS):
            run.refuse_failed()
        run.refuse_stopped()

    def _await_rest(self, between: contextlib.ExitStack) -> None:
        """Keep batches and epochs from beginning, at a moment at which nothing is taken in that no epoch has read, and
        nothing of an epoch is prepared: what is, a start may have found, and can only be finished as it was begun."""
        run, shell = self._run, self._run.shell
        with contextlib.ExitStack() as held:
            held.enter_context(shell.between_batches())
            while True:
                run.refuse_ending()
                with contextlib.ExitStack() as still:
                    still.enter_context(shell.between_epochs())
                    if shell.machine.resting and not shell.unread:
                        run.refuse_ending()
                        held.push(still.pop_all())
                        between.push(held.pop_all())
                        return
                shell.hurry()
                shell.wait_for(lambda: shell.machine.resting and not shell.unread, LOOK_SECONDS)

    def _fitted(self, plan: JobPlan, reset: Collection[str], splits: Mapping[str, str]) -> JobPlan:
        """As this run has it: sized, numbered; and nothing of it means another state."""
        before = self._run.plan.stages
        plan = plan.overflowing(self._options.on_overflow).sized(self._run.file.slices)
        used = StagePlan("", 1, (InputPlan(1, self._used),), before[0].operator) if self._used >= 0 else None
        plan = plan.numbered([[used] if used else [], before])
        before = _with_splits(before, splits)
        known = {stage.name: stage for stage in before}
        asked = _limits(plan.stages)
        found = compare([_shown_as(stage, asked.get(stage.name, 0), reset) for stage in before], plan.stages)
        reshaped = [
            f"stage '{stage.name}': its state would have another shape"
            for stage in plan.stages
            if stage.name in known and mapping(known[stage.name].operator, stage.operator) is not None
        ]
        if refused := [*found.refusals, *reshaped]:
            raise PlanError(
                "This cannot be changed while the job runs:\n" + "\n".join(f"    {line}" for line in refused),
                safe="Nothing was changed.",
                todo="Add what is new under another name and remove the old one; or stop, change, start.",
            )
        if splits and isinstance(self._options.safety, Shards):
            raise PlanError(
                f"With safety=hf.Shards(…) a stage cannot be split while the job runs: '{min(splits)}' would be split "
                f"off '{splits[min(splits)]}'.",
                safe="Nothing was changed.",
                todo="Use hf.Delta(), hf.Sync() or None; or stop, change, start.",
            )
        return plan

    def _graph(self, plan: JobPlan, told: Sequence[str]) -> GraphFile:
        ledger = self._run.ledger
        former, version = ledger.graph(), ledger.next_graph()
        kept = (former.epoch, former.packs, former.slices) if former else (0, [], [])
        return GraphFile(
            version=version,
            epoch=kept[0],
            incarnation=self._run.shell.incarnation,
            graph=plan.fingerprint().to_dict(),
            stages=[stage.to_dict() for stage in plan.stages],
            changes=list(told),
            packs=kept[1],
            slices=kept[2],
            created=time.time_ns() // 1_000_000,
            spark=ledger.spark,
            made_names=plan.made_names,
            live=True,
            former=former.version if former else 0,
            names=dict(plan.notes.names),
            updates=[dict(one) for one in plan.notes.updates],
            packed=former.begun if former is not None and former.packs else None,
            past=Past.of(ledger.graphs()).to_dict(),
        )

    def _put(self, graph: GraphFile) -> None:
        log = self._run.jobs.log
        with log.ledger_lock:
            newest = log.ledger.newest_owner()
            if newest is not None and newest.incarnation != self._run.shell.incarnation:
                raise FencedError(
                    "Another driver has this job now.",
                    safe="Nothing was changed.",
                    todo="Ask the driver that has it.",
                )
            log.ledger.put_graph(graph)
        faults.place("driver", "after-live-graph", self._run.shell.machine.committed + 1)

    def _follow(self, plan: JobPlan, graph: GraphFile, opened: Mapping[str, Any], idle: Collection[str] = ()) -> None:
        run, jobs = self._run, self._run.jobs
        drawn = {sink.name for sink in plan.sinks}
        gone = [name for name in jobs.sinks if name not in drawn]
        for name in gone:
            jobs.sinks.pop(name).close()
        jobs.sinks.update(opened)
        run.plan = jobs.plan = self._questions.plan = plan
        self._used = max([self._used, *(place.number for stage in plan.stages for place in stage.inputs)])
        jobs.log.follow(plan.stages, over_stages(plan), plan.feeding, graph.splits)
        jobs.log.over_source = frozenset(over_source(plan))
        jobs.log.loops.layout = rounds_layout_of(plan, run.file.slices)
        layout = layout_of(plan.stages, run.file.slices)
        jobs.blocks.follow(plan.stages, over_source(plan), layout, graph.splits)
        jobs.blocks.sinks.leaves(over_stages(plan))
        left = (*jobs.log.left_out, *idle)
        jobs.log.left_out = tuple(name for name in left if name in {stage.name for stage in plan.stages})
        self._host = replace(self._host, stages=tuple(plan.stages), graph=graph.version)
        self.version = graph.version
        run.fleet.rehost(self._host)
        run.shell.follow(ev.GraphChanged(plan.levels, **sinks_of(plan)), SinksChanged(**source_sinks_of(plan)))
        run.shell.tell(ev.SinksLeftOut(without(plan, jobs.log.left_out)))
        for line in graph.changes:
            run.shell.history.note("changed", line)


def _said(**turns: list[str]) -> dict[str, list[str]]:
    return {name: stages for name, stages in turns.items() if stages}


def _with_splits(stages: Sequence[StagePlan], splits: Mapping[str, str]) -> tuple[StagePlan, ...]:
    """With those beside them that begin as they are."""
    known = {stage.name: stage for stage in stages}
    return (*stages, *(replace(known[source], name=name) for name, source in splits.items()))


def _limit(stage: StagePlan) -> int:
    return 0 if stage.operator.limit is None else stage.operator.limit


def _limits(stages: Sequence[StagePlan]) -> dict[str, int]:
    return {stage.name: _limit(stage) for stage in stages}


def _shown_as(stage: StagePlan, limit: int, reset: Collection[str]) -> StagePlan:
    """As it may go on: it can show fewer rows, and more of them if it begins anew."""
    may = limit and (limit < _limit(stage) or stage.name in reset)
    return replace(stage, operator=stage.operator.limited(limit)) if may else stage
