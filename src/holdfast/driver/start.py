"""Starting a job: everything is opened, checked against the store and told to the master, or closed again."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import SparkSession

from holdfast.container.messages import Host
from holdfast.driver import upgrade as upgrading
from holdfast.driver.brain import Brain
from holdfast.driver.counts import Counts
from holdfast.driver.endpoint import Desk, Questions
from holdfast.driver.epochs import EpochJobs, sink_is_gone
from holdfast.driver.former_places import laid_out
from holdfast.driver.history import History
from holdfast.driver.live_job import SECTION, LiveJob
from holdfast.driver.loop import Shell
from holdfast.driver.options import Options
from holdfast.driver.routes import Routes
from holdfast.driver.sizes import Sizes
from holdfast.driver.store import SinkCounters, StoreHandlers
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import ContainerError, CorruptionError, PlanError, StoreError
from holdfast.launch.executors import ExecutorLauncher
from holdfast.launch.fleet import Fleet
from holdfast.launch.local import ChildLauncher, ContainerSettings, Launcher
from holdfast.log.ledger import Ledger
from holdfast.log.records import Commit, JobFile
from holdfast.log.store import Store
from holdfast.master import events as ev
from holdfast.master.autoscale import PerExecutor
from holdfast.master.balance import slices_auto
from holdfast.plan.former import refuse_readers
from holdfast.plan.graph import opaque, outputs
from holdfast.recovery.policies import Auto, FromStore, Line, Star, Tree
from holdfast.spark import claims, compat
from holdfast.spark.checkpoint import SparkNotes
from holdfast.spark.claims import Claim
from holdfast.spark.hadoop import hadoop_creator
from holdfast.spark.partials import Preaggregation
from holdfast.spark.sinks import FileSink, Sink, for_each_batch, open_sink
from holdfast.wire import tokens

if TYPE_CHECKING:
    from holdfast.plan.graph import Sink as SinkPlan
    from holdfast.spark.stream import JobPlan

READY_SECONDS = 180.0


class Job(Protocol):
    """What a job is to its start, beside its plan."""

    name: str
    spark: SparkSession
    store: str


def start(job: Job, plan: JobPlan, options: Options) -> LiveJob:
    spark = job.spark
    compat.version_of(spark)  # refuses what it does not know
    if any(query.name == job.name for query in spark.streams.active):
        raise StoreError(
            f"A query named '{job.name}' runs in this session already.",
            safe="It goes on undisturbed.",
            todo="Stop it first (run.stop()), or give this job another name and store.",
        )
    _refuse_unfollowable(job, options)
    if both := sorted({sink.name for sink in plan.sinks}.intersection(options.drop_sinks)):
        raise PlanError(
            f"drop_sinks names {both[0]!r}, which the job writes to.",
            safe="Nothing was started.",
            todo="Name sinks that the job has no more; those that it has get every epoch.",
        )
    if both := sorted({stage.name for stage in plan.stages}.intersection(options.drop)):
        raise PlanError(
            f"drop names {both[0]!r}, which is a stage of the job.",
            safe="Nothing was started.",
            todo="Name stages that the job has no more.",
        )
    store = Store(job.store)
    if not store.is_local:
        store = Store(job.store, creator=hadoop_creator(spark, job.store))
    store.probe()
    plan, told = laid_out(plan, Ledger(store, SECTION), lambda former: start(job, former, options))
    ledger = Ledger(store, SECTION)
    slices = _slices(job, ledger, options)
    plan = plan.sized(slices)
    file = _job_file(job, plan, ledger, slices)
    plan = plan.numbered(upgrading.history(ledger, plan))
    refuse_readers(plan.planned, file.format)
    graph = ledger.graph()
    upgrade = upgrading.look(ledger, file, plan, options.drop)
    sinks = {sink.name: _open(job, file, sink) for sink in plan.sinks}
    token = secrets.token_urlsafe(32)
    listen = _address(job, options)
    history, notes = History(), SparkNotes(ledger)
    for event in told:
        history.note(event.kind, event.text)
    with contextlib.ExitStack() as opened:  # closed again, the last one first, if anything goes wrong
        desk = Desk(listen, token)
        opened.callback(desk.close)
        owner = ledger.take_ownership(socket.gethostname(), os.getpid(), desk.address.location)
        upgrading.refuse_rival(ledger, graph, job.name)
        if mended := notes.mend():
            history.note("mended", f"Spark's own checkpoint: {mended}")
        if upgrade is not None:
            upgrade.perform(owner.incarnation)
            for change in upgrade.changes:
                history.note("changed", change)
        found = _look(ledger, plan, options)
        brain = Brain(history)
        settings = ContainerSettings(token, listen, options.threads, hash_seed=file.hash_seed)
        host = Host(
            file.job_id,
            tuple(plan.stages),
            file.slices,
            store.uri,
            SECTION,
            options.upload,
            options.copy_bandwidth,
        )
        launcher = _launcher(job, options, settings, desk)
        if isinstance(launcher, ExecutorLauncher) and launcher.warning:
            history.note("warning", launcher.warning)
        fleet = Fleet(launcher, host, owner.incarnation, brain.lost, options.silence, options.ring())
        opened.callback(fleet.close)
        routes = Routes(brain, fleet)
        opened.callback(routes.close)
        sizes, counts = Sizes(file.slices), Counts()
        log = StoreHandlers(
            ledger,
            owner.incarnation,
            history,
            notes,
            SinkCounters(tuple(sinks), dict(found.counters), frozenset(options.drop_sinks)),
            found.time,
            sizes,
            any(stage.operator.calls_users for stage in plan.stages),
        )
        jobs = EpochJobs(
            plan=plan,
            store=ledger.section,
            job=file.job_id,
            incarnation=owner.incarnation,
            slices=file.slices,
            token=token,
            master=desk.address,
            routes=routes,
            log=log,
            sizes=sizes,
            counts=counts,
            push=not store.is_local if options.push == "auto" else options.push,
            preaggregation=Preaggregation(options.preaggregate),
            sinks=sinks,
        )
        shell = Shell(brain, fleet, log, jobs, sizes, counts, options.sinks_at_once)
        desk.table.add(Questions(file, owner.incarnation, plan, brain, routes, fleet))
        safety = "the log alone" if options.safety is None else str(options.safety)
        run = LiveJob(
            job.name, spark, plan, ledger, shell, fleet, desk, jobs, file, options.pace, options.autoscale, safety
        )
        opened.pop_all()
        opened.callback(run.stop)
        tokens.keep(file.job_id, owner.incarnation, token)
        _take_folders(run, found)
        _begin(run, found, options)
        opened.pop_all()
    return run


def _slices(job: Job, ledger: Ledger, options: Options) -> int:
    if options.slices != "auto":
        return options.slices
    known = ledger.find_job()  # the number is for life
    return known.slices if known else slices_auto([job.spark.sparkContext.defaultParallelism])


def _job_file(job: Job, plan: JobPlan, ledger: Ledger, slices: int) -> JobFile:
    wanted = JobFile(
        uuid.uuid4().hex,
        job.name,
        plan.fingerprint().to_dict(),
        slices,
        time.time_ns() // 1_000_000,
        stages=[stage.to_dict() for stage in plan.stages],
        made_names=plan.made_names,
    )
    return ledger.open_or_create_job(wanted)


def _on_executors(job: Job, options: Options) -> bool:
    local = str(job.spark.sparkContext.master).startswith("local")
    if local and options.where == "executors":
        raise PlanError(
            "where='executors' needs a cluster: with a local master the driver is all there is.",
            safe="Nothing was started.",
            todo="Use where='auto', or a master like spark://…",
        )
    return not local and options.where != "driver"


def _refuse_unfollowable(job: Job, options: Options) -> None:
    if not isinstance(options.autoscale, PerExecutor):
        return
    dynamic = job.spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    if dynamic or not _on_executors(job, options):
        raise PlanError(
            "autoscale=PerExecutor() needs executors that containers share with Spark's tasks"
            + (": with dynamic allocation each container has an executor of its own." if dynamic else "."),
            safe="Nothing was started.",
            todo="Use hf.Autoscale." if dynamic else "Use it on a cluster, with where='auto'; else hf.Autoscale.",
        )


def _address(job: Job, options: Options) -> str:
    """Where the driver listens: never on more addresses than somebody needs to reach."""
    if options.listen != "auto":
        return options.listen
    host = job.spark.conf.get("spark.driver.host", None) if _on_executors(job, options) else None
    return host or "127.0.0.1"


def _launcher(job: Job, options: Options, settings: ContainerSettings, desk: Desk) -> Launcher:
    """On the executors if there are any, as children of the driver if it is all there is."""
    if not _on_executors(job, options):
        return ChildLauncher(settings)
    launcher = ExecutorLauncher(job.spark, settings, desk.address, divides=compat.cores_divide(job.spark))
    desk.table.add(launcher)
    return launcher


@dataclass(frozen=True)
class Found:
    """What the store held when the job was taken."""

    commit: Commit | None
    prepared: tuple[ev.Prepared, ...]
    counters: Mapping[str, int]
    given: tuple[str, ...]
    """The sinks that the prepared epoch goes to."""
    time: Timekeeper
    """As the last committed epoch left it, and as far as the next one has been prepared."""

    @property
    def committed(self) -> int:
        return self.commit.fence.epoch if self.commit else 0


def _look(ledger: Ledger, plan: JobPlan, options: Options) -> Found:
    commit = ledger.last_committed()
    committed = commit.fence.epoch if commit else 0
    last = ledger.get_prepare(committed, 1) if committed else None
    if committed and last is None:
        raise CorruptionError(
            f"Epoch {committed} is committed, but its prepare is gone from {ledger.section.uri}.",
            safe="Nothing was changed.",
            todo="Bring the file back from a copy of the store.",
        )
    counters = (last.sinks if commit is None or commit.sinks is None else commit.sinks) if last else {}
    drawn, prepared = [sink.name for sink in plan.sinks], []
    given: tuple[str, ...] = ()
    for level in range(1, plan.levels + 1):
        found = ledger.get_prepare(committed + 1, level)
        if found is None:
            break
        ledger.refuse_former_graph(found)
        if level == 1:
            given = tuple(name for name in found.given_to(counters) if name not in options.drop_sinks)
            if gone := [name for name in given if name not in drawn]:
                raise sink_is_gone(gone, committed + 1)
        prepared.append(ev.Prepared(level, found.fence, found.ranges, given))
    return Found(commit, tuple(prepared), counters, given, _timekeeper(ledger, plan, committed))


def _timekeeper(ledger: Ledger, plan: JobPlan, committed: int) -> Timekeeper:
    keeper = Timekeeper(plan.stages)
    for epoch in (committed, committed + 1) if committed else (1,):
        level = 1  # of all levels there were: a stage may be on another one than before
        while (prepare := ledger.get_prepare(epoch, level)) is not None:
            keeper.take(prepare)
            level += 1
    return keeper


def _begin(run: LiveJob, found: Found, options: Options) -> None:
    ledger, shell, machine = run.ledger, run.shell, run.shell.machine
    checkpoints = [0, 0, *(manifest.epoch for manifest in ledger.manifests(shell.history.corrupt))]
    routing = ledger.last_routing()
    shell.begin(
        ev.Started(
            incarnation=shell.incarnation,
            levels=run.plan.levels,
            sinks=tuple(sink.name for sink in run.plan.sinks),
            slices=run.file.slices,
            containers=options.containers,
            safety=options.terms(),
            from_copies=not isinstance(options.way_back, FromStore),
            by_ring=isinstance(options.way_back, Star | Line | Tree | Auto),
            committed=found.committed,
            ranges=found.commit.ranges if found.commit else {},
            prepared=found.prepared,
            sinks_done=ledger.taken(found.committed + 1, found.given),
            routing=ev.Routing(routing.version, tuple(routing.owners)) if routing else None,
            checkpoint=checkpoints[-1],
            checkpoint_before=checkpoints[-2],
            sinks_at_once=options.sinks_at_once,
            sinks_after={sink.name: sink.after for sink in run.plan.sinks if sink.after},
            sinks_read={sink.name: _read_by(sink) for sink in run.plan.sinks if _may_be_silent(sink)},
        )
    )
    if not found.committed and not found.prepared:
        # The first intake needs no container, so Spark may begin while they start.
        run.start_query()
    if not shell.wait_for(lambda: machine.gathered, READY_SECONDS):
        raise ContainerError(f"The containers of job '{run.name}' did not come up in {READY_SECONDS:.0f} s.")
    run.raise_error()
    if run.query is None:
        # State that cannot be brought back must be known before anything new is written.
        while not shell.wait_for(lambda: machine.whole or machine.unrestored is not None, 60):
            pass
        run.raise_error()
        if machine.unrestored is not None:
            raise machine.unrestored
        run.start_query()


def _may_be_silent(sink: SinkPlan) -> bool:
    """Whether nothing is lost if it is not called for an epoch in which the stages that it reads put out nothing."""
    function = sink.function is not None or opaque(sink.node)
    return bool(outputs(sink.node)) and not function and sink.mode != "complete"


def _read_by(sink: SinkPlan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(leaf.stage.name for leaf in outputs(sink.node)))


def _take_folders(run: LiveJob, found: Found) -> None:
    """Spark's file sink skips numbers that it has seen: a folder must be as far as this store says it is, and ours."""
    files = [sink for sink in run.jobs.sinks.values() if isinstance(sink, FileSink)]
    for sink in files:
        ours = Claim(run.file.job_id, sink.name, run.name, run.ledger.store.uri)
        claimed = claims.look(run.spark, sink.path, ours)
        expected = found.counters.get(sink.name, -1)
        given = sink.name in found.given
        if given and sink.mend(expected + 1):
            what = f"sink '{sink.name}': what it had of epoch {found.committed + 1} is written again"
            run.shell.history.note("mended", what)
        there = sink.newest()
        if there != expected and not (given and there == expected + 1):
            raise StoreError(
                f"Sink '{sink.name}' writes to {sink.path}, where {there + 1} epochs of it are, "
                f"but this store knows of {expected + 1}.",
                safe="Nothing was written.",
                todo="Give the sink a folder of its own, or the folder and the name that it had with this store.",
            )
        if not claimed:
            claims.take(run.spark, sink.path, ours)


def _open(job: Job, file: JobFile, sink: SinkPlan) -> Sink:
    mode = "update" if sink.mode == "append" else sink.mode
    if sink.function is not None:
        return for_each_batch(sink.name, sink.function, mode, file.job_id)
    return open_sink(
        job.spark,
        sink.name,
        sink.format,
        sink.options,
        mode,
        sink.partition_by,
        sink.schema,
        identity=f"{file.job_id}/{SECTION}/{sink.name}",
        job=file.job_id,
        stamp=sink.stamp,
        table=sink.table,
    )
