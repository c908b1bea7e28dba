"""The slices of one job on this container, and what can be done to them.

All slices of all stages answer the same six questions (``holdfast.state``), so this module knows nothing of
aggregates. Work is cut by slice: the thread table runs them side by side (the kernels let go of the GIL), and each
slice has one lock, held only while that slice is applied or read.

It is long because all that is asked of a job's slices at once is here; how each is done is elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack

from holdfast import faults
from holdfast.container import digests, footprints, splits
from holdfast.container.backups import Backups, Loaders
from holdfast.container.checkpoints import Checkpoints
from holdfast.container.former_graphs import FormerGraphs, Then
from holdfast.container.loads import Loads
from holdfast.container.log_reader import LogReader
from holdfast.container.reads import Reading
from holdfast.container.restore import Revived, demoted
from holdfast.container.slices import HeldSlice, HostedStage, Inputs, count, hosted
from holdfast.container.staging import Staging
from holdfast.container.steering import Steering
from holdfast.container.thread_table import ThreadTable
from holdfast.container.throttle import Bucket, refuse_no_rates
from holdfast.errors import EpochGone, FencedError
from holdfast.log.footprints import Wrote
from holdfast.log.graphs import Split
from holdfast.log.ledger import Ledger
from holdfast.log.records import Prepare
from holdfast.operators.marked import largest_units
from holdfast.operators.spec import Operator
from holdfast.operators.stage import StagePlan
from holdfast.safety.policies import Checks
from holdfast.wire.messages import StageFigures
from holdfast.wire.questions import HostedStatus, StageSize

BUFFERED_SECONDS = 0.01
"""Of its speed a link takes so much at once: what cards and switches buffer."""


class HostedJob:
    """One job's slices here, behind the fence of its newest master."""

    def __init__(
        self,
        job: str,
        plans: Sequence[StagePlan],
        slices: int,
        ledger: Ledger,
        threads: ThreadTable,
        staging: Staging,
        upload: float | None = None,
        copy_bandwidth: float | None = None,
        graph: int | None = None,
        checks: Checks | None = None,
    ) -> None:
        self.job = job
        self.store = ledger.section
        self.stages = {plan.name: hosted(plan, marked=checks is not None) for plan in plans}
        self.steering = None if checks is None else Steering(checks, slices)
        """Where the log has units of the state."""
        self._graph = graph
        self._splits: list[Split] | None = None
        if graph:
            ledger.go_on_by(ledger.graph_of(graph))
            self._splits = ledger.graphs().splits(graph)
        self.committed = 0
        self.staging = staging
        self.log = LogReader(ledger, staging, slices)
        self.reading = Reading(self.stages)
        self.checkpoints = Checkpoints(self.reading, self.store, lambda: self.committed)
        self.backups = Backups(self._operators, floor=splits.floor(self._splits or (), self.stages))
        self.loads = Loads()
        self.upload = Bucket(upload, BUFFERED_SECONDS)
        """What all that goes to peers passes: copies, pieces, branches."""
        self.copy_bandwidth = copy_bandwidth
        """Bytes a second that may go to peers behind the epochs; None: as fast as it goes."""
        self.download, self.from_store = Bucket(None, BUFFERED_SECONDS), Bucket(None, BUFFERED_SECONDS)
        """What comes from peers, and what a checkpoint is read through: for experiments with slow links."""
        self._threads = threads
        self._incarnation = 0
        self._lock = threading.Lock()
        self._adopting = threading.Lock()

    def close(self) -> None:
        self.backups.close()

    # --- which graph it has -------------------------------------------------------------------------------

    @property
    def graph(self) -> int:
        """The version of the graph that its stages are of."""
        if self._graph is None:
            self._graph = self.log.ledger.graphs().newest
        return self._graph

    @property
    def splits(self) -> list[Split]:
        """The stages that were split off others on the way to it."""
        if self._splits is None:
            self._splits = self.log.ledger.graphs().splits(self.graph)
        return self._splits

    @property
    def levels(self) -> int:
        return max(stage.plan.level for stage in self._every)

    def levels_of(self, prepare: Prepare) -> int:
        """How many an epoch has: those of the graph that its prepare names."""
        graphs = self.log.ledger.graphs()
        return max((stage["level"] for stage in graphs.stages(graphs.version_of(prepare))), default=self.levels)

    @property
    def tables(self) -> list[tuple[str, int]]:
        return [(stage.plan.name, at) for stage in self._every for at in range(len(stage.operator.layouts))]

    @property
    def _every(self) -> list[HostedStage]:
        """The stages of this moment: some may come or go while one looks at them."""
        return list(self.stages.values())

    @property
    def _operators(self) -> dict[str, Operator]:
        return {name: stage.operator for name, stage in self.stages.items()}

    @property
    def _opened(self) -> set[str]:
        """Stages whose oldest session holds back the watermark of another."""
        return {name for stage in self._every for name in stage.plan.time.opened}

    def adopt(self, version: int) -> None:
        """Go on by the graph of that version, which a prepare names, if it is a later one: with its stages, and their
        functions. The slices here are at the epoch before that prepare's: of a stage that is new they have nothing, or
        what the one has that it was split off.

        What is gone goes at once: nobody will ask for it in the terms of this graph, and no epoch before it will be
        taken back.
        """
        if version <= self.graph:
            return
        with self._adopting:
            if version <= self.graph:
                return
            graph = self.log.ledger.graph_of(version)
            if not graph.live:
                return  # of another driver, after ours: nothing of it can be applied here
            plans = {plan.name: plan for plan in map(StagePlan.from_dict, graph.stages)}
            made = {name: hosted(plan, self.stages.get(name)) for name, plan in plans.items()}
            self.log.ledger.go_on_by(graph)
            found = self.log.ledger.graphs().splits(version)
            begun = splits.begun(found, self.stages, made, self.each)
            with self._lock:
                epochs = {number: held.state.epoch for stage in self._every for number, held in stage.slices.items()}
                lost = splits.lost(found, made, begun, epochs)
                for name in [name for name in self.stages if name not in plans]:
                    del self.stages[name]
                for name, stage in made.items():
                    if name not in self.stages:
                        stage.slices |= splits.first(stage, begun.get(name, {}), epochs)
                    for number in lost:
                        stage.slices.pop(number, None)
                    self.stages[name] = stage
                self.backups.adopt(self._operators, splits.floor(found, made))
                self._graph, self._splits = version, found

    def _then(self, prepare: Prepare) -> Then:
        """The stages in the terms of a prepare: of the graph there is or, for slices that lag behind, of one before."""
        if prepare.graph == self.graph:
            return Then(self._every)
        return FormerGraphs(self.log.ledger.graphs(), self.graph, self.stages).stages_of(prepare)

    # --- who may speak ------------------------------------------------------------------------------------

    def admit(self, incarnation: int, leads: bool = True) -> None:
        """Who does not speak for its master replaces nobody, whatever number it says."""
        with self._lock:
            if incarnation < self._incarnation:
                raise FencedError(
                    f"Master {incarnation} of job '{self.job}' has been replaced by master {self._incarnation}.",
                    safe="Nothing was changed by this request; the newer master owns the state.",
                    todo="Stop this driver.",
                )
            if leads:
                self._incarnation = incarnation

    @property
    def incarnation(self) -> int:
        """The newest master that has asked for anything."""
        return self._incarnation

    def limit(self, rates: Mapping[str, float | None]) -> None:
        """Other limits from now on, in bytes a second, for those links that are named."""
        buckets = {"upload": self.upload, "download": self.download, "from_store": self.from_store}
        named = {name: rates[name] for name in (*buckets, "copies") if name in rates}
        refuse_no_rates(named)
        for name, rate in named.items():
            if name == "copies":  # every sending has a bucket of its own
                self.copy_bandwidth = rate
            else:
                buckets[name].limit(rate)

    # --- apply, undo, commit ------------------------------------------------------------------------------

    def apply(self, prepare: Prepare, slices: Sequence[int], *, shadow: bool = False) -> dict[str, StageFigures]:
        """Bring ``slices`` of the prepare's level from e-1 to e. Slices that are there already stay as they are."""
        epoch = prepare.fence.epoch
        self.adopt(prepare.graph)
        if self.steering is not None:
            self.steering.begin(epoch, prepare.clock, self.stages, self._threads.threads)
        figures, advanced = {}, set[int]()
        known, then = set(self.stages), self._then(prepare)
        for name in then.unborn:
            self.stages[name].pass_over(epoch, slices)
        splits.at(epoch, self.splits, self.stages, slices, self.each)
        waited_for = self._opened
        for stage in (one for one in then.stages if one.plan.level == prepare.level):
            todo = [number for number in slices if stage.held(number).state.epoch < epoch]
            advanced.update(todo)
            still, stirred, worked = stage.still(prepare), list[int](), list[tuple[int, float]]()
            for group in self.log.groups(stage, prepare, todo):
                rows = self.log.inputs_of(stage, prepare, group)
                due = self.steering.due(stage.plan.name, group.slices) if self.steering and not shadow else ()
                busy = [number for number in group.slices if number in rows or number in due] if still else group.slices
                stirred += busy

                def run(
                    number: int,
                    stage: HostedStage = stage,
                    rows: Mapping[int, Inputs] = rows,
                    worked: list[tuple[int, float]] = worked,
                    due: Collection[int] = due,
                ) -> None:
                    held = stage.held(number)
                    parts = rows.get(number)
                    with ExitStack() as locks:
                        peers = {name: self.stages[name].held(number) for name in stage.plan.peers}
                        for one in (*peers.values(), held):  # in the order of levels, as everywhere
                            locks.enter_context(one.lock)
                        started = time.perf_counter()
                        steering = self.steering
                        held.state.run_by(steering.operator(stage, number, shadow) if steering else stage.operator)
                        looked = {name: peer.state for name, peer in peers.items()}
                        stage.advance(held.state, prepare, parts, looked, anyway=number in due)
                        seconds = time.perf_counter() - started
                    took = count(parts)
                    worked.append((took, seconds))
                    self.loads.note(number, took, seconds)

                self.each(busy[: len(busy) // 2], run)
                faults.place("container", "mid-apply", epoch)
                self.each(busy[len(busy) // 2 :], run)
                stage.pass_over(epoch, set(group.slices).difference(busy))
                del rows, run  # before the next group's rows come
            opened = slices if stage.plan.name in waited_for else ()
            left_out = stage.plan.name in prepare.left_out
            found = stage.figures(slices, stirred, opened, worked, left_out=left_out)
            figures[stage.plan.name] = self.steering.told(stage.plan.name, found) if self.steering else found
        with self._adopting:  # what came meanwhile is of a later epoch, and had nothing in this one
            for stage in [one for one in self._every if one.plan.name not in known]:
                stage.pass_over(epoch, slices)
        if prepare.level == self.levels:
            self.staging.drop_through(epoch, prepare.position)
            self.log.close()
            self.loads.end_epoch(advanced)
        return figures

    def entries(self, prepare: Prepare, slices: Sequence[int], label: str) -> Wrote | None:
        """What the log is to say of these slices' units, of the prepare's level: written where it is much."""
        if self.steering is None:
            return None
        at = self.at_level(prepare.level)
        return footprints.of_level(at, slices, self.log.ledger, prepare.fence, prepare.level, label)

    def undo(self, epoch: int, slices: Sequence[int]) -> None:
        """Take ``epoch`` back on these slices, in every stage that has come so far."""
        for stage in self._every:
            for held in [stage.held(number) for number in slices]:
                with held.lock:
                    if held.state.epoch == epoch:
                        held.state.undo()

    def commit(self, epoch: int) -> None:
        """Every epoch up to this one is committed: what could undo it may go, unless a reader has it pinned."""
        if epoch > self.committed:
            self.committed = epoch
            self.reading.release(epoch)

    def digests(self, level: int, epoch: int, slices: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """What the epoch puts out, as a checksum a slice: two owners of a slice must agree in every bit."""
        found: dict[int, int | None] = {}

        def digest(number: int) -> None:
            found[number] = digests.put_out(self.at_level(level), number, epoch)

        self.each(slices, digest)
        return tuple((number, one) for number, one in sorted(found.items()) if one is not None)

    def state_digests(self, epoch: int, slices: Sequence[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
        """What these slices are as of a committed epoch, as a checksum each, of those that can still say so; and the
        version of the graph in whose terms that is."""
        graph, stages = self.graph, self._every
        found = {number: digests.state(self.reading, stages, number, epoch) for number in slices}
        if graph != self.graph:
            return graph, ()
        return graph, tuple((number, digest) for number, digest in found.items() if digest is not None)

    # --- come and go --------------------------------------------------------------------------------------

    def restore(self, slices: Sequence[int], epoch: int, checkpoint: int) -> tuple[int, int, tuple[str, ...]]:
        """Load ``slices`` as of ``checkpoint`` and replay the log up to ``epoch``; they appear when they are whole.

        The bytes that were loaded, the rows that were replayed, and what could not be read.
        """
        self._adopt_of(epoch)
        revived = Revived(self)
        if self.steering is None:
            loaded = revived.load_packs(slices, self.log.ledger.manifest(checkpoint) if checkpoint else None)
        else:
            loaded = revived.load_units(slices, epoch)
        replayed = revived.replay(epoch)
        self._appear(revived, epoch)
        return loaded, replayed, revived.told

    def activate(self, slices: Sequence[int], epoch: int) -> tuple[int, int]:
        """Make ``slices`` active at ``epoch`` from what is here, and the log above it. Backups are consumed.

        The bytes of them, and the rows that were replayed.
        """
        self._adopt_of(epoch)
        revived = Revived(self)
        from_backups = revived.stand_by(slices, epoch) if epoch else []
        try:
            # Before the first epoch nobody has anything, and a slice is made from that.
            nbytes = revived.load_backups(from_backups) if epoch else revived.load_packs(slices, None)
            faults.place("container", "mid-activate", epoch)
            replayed = revived.replay(epoch)
        except BaseException:
            revived.give_back()
            raise
        self._appear(revived, epoch)
        return nbytes, replayed

    def demote(self, slices: Sequence[int], epoch: int) -> None:
        """Active slices at exactly this committed epoch become backups of that version."""
        for number in slices:
            held = {stage.plan.name: stage.slices.get(number) for stage in self._every}
            if self.backups.versions([number]).get(number) == epoch and not any(held.values()):
                continue  # asked before
            self._demote(number, {name: one for name, one in held.items() if one is not None}, epoch)
            faults.place("container", "mid-demote", epoch)

    def _demote(self, number: int, held: dict[str, HeldSlice], epoch: int) -> None:
        with ExitStack() as locks:
            for one in held.values():
                locks.enter_context(one.lock)
            at = sorted({one.state.epoch for one in held.values()})
            if len(held) < len(self.stages) or at != [epoch]:
                raise EpochGone(
                    f"Slice {number} cannot become a backup of epoch {epoch}: it is "
                    + (f"at {', '.join(map(str, at))}." if held else "not here."),
                    safe="It is as it was.",
                    todo="Ask the master again.",
                )
            self.backups.put(number, epoch, demoted({name: one.state for name, one in held.items()}))
            self.forget([number])

    def forget(self, slices: Iterable[int]) -> None:
        numbers = list(slices)
        with self._lock:
            for stage in self._every:
                for number in numbers:
                    stage.slices.pop(number, None)
        self.loads.forget(numbers)
        self._threads.forget((self.job, number) for number in numbers)

    def keep_backup(self, number: int, version: int, loaders: Loaders) -> None:
        """Keep it as a backup, unless the slice is active here by now: it has no backup beside itself."""
        with self._lock:
            if not any(number in stage.slices for stage in self._every):
                self.backups.put(number, version, loaders)

    def _adopt_of(self, epoch: int) -> None:
        """The graph of the last epoch that slices are brought back to, for one who has applied none of it."""
        if epoch and (prepare := self.log.ledger.get_prepare(epoch, 1)) is not None:
            self.adopt(prepare.graph)

    def _appear(self, revived: Revived, epoch: int) -> None:
        splits.refuse_gone(self.splits, self.stages, epoch)
        with self._lock:
            for stage in self._every:
                held = revived.fresh.get(stage.plan.name)
                if held is None:  # it came meanwhile, and begins with a later epoch
                    stage.without_rows(revived.slices, epoch)
                else:
                    stage.slices.update(held)
                    self.backups.drop(held)
            self.committed = max(self.committed, epoch)
        self.reading.release(self.committed)

    def repartition(self) -> None:
        """Every key into a new table, as a container must whose threads each have a table of their own (a baseline)."""
        for held in (held for stage in self._every for held in list(stage.slices.values())):
            with held.lock:
                epoch = held.state.epoch
                held.state.load(held.state.whole(epoch) if epoch else [], epoch)

    # --- about itself -------------------------------------------------------------------------------------

    def status(self, threads: int = 0) -> HostedStatus:
        stages = {}
        for name, stage in list(self.stages.items()):
            states = [held.state for held in list(stage.slices.values())]
            rows, nbytes = sum(state.rows for state in states), sum(state.nbytes for state in states)
            stages[name] = StageSize(len(states), rows, nbytes, largest_units(stage.operator, states))
        return HostedStatus(stages, self.committed, self.staging.used, self.backups.count, self.backups.nbytes, threads)

    def at_level(self, level: int) -> list[HostedStage]:
        return [stage for stage in self._every if stage.plan.level == level]

    def each(self, slices: Sequence[int], run: Callable[[int], None]) -> None:
        """Run it for all these slices, each on the thread it belongs to."""
        self._threads.each(slices, lambda number: (self.job, number), run)
