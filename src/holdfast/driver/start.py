"""Starting a job: everything is opened, checked against the store and told to the master, or closed again."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import SparkSession

from holdfast.container.messages import Host
from holdfast.driver import loops, units
from holdfast.driver import upgrade as upgrading
from holdfast.driver.brain import Brain
from holdfast.driver.counts import Counts
from holdfast.driver.endpoint import Desk, Questions
from holdfast.driver.epochs import EpochJobs
from holdfast.driver.former_places import laid_out
from holdfast.driver.found import (
    Found,
    begun_before,
    counted,
    look,
    moved_down,
    refuse_moved,
    refuse_undrained,
    refuse_unreadable,
    taken_in,
)
from holdfast.driver.history import History
from holdfast.driver.intake import IntakeHandlers
from holdfast.driver.live_changes import LiveChanges
from holdfast.driver.live_job import SECTION, LiveJob
from holdfast.driver.loop import Shell
from holdfast.driver.open_sinks import (
    Folders,
    open_sinks,
    over_source,
    refuse_waiting,
    sinks_of,
    source_sinks_of,
    without,
)
from holdfast.driver.options import Options
from holdfast.driver.routes import Routes
from holdfast.driver.security import READER, WORKER, Passes, Plain, open_spark
from holdfast.driver.sizes import Sizes
from holdfast.driver.store import Feedback, StoreHandlers
from holdfast.errors import ContainerError, PlanError, StoreError
from holdfast.launch.executors import ExecutorLauncher
from holdfast.launch.fleet import Fleet
from holdfast.launch.local import ChildLauncher, ContainerSettings, Launcher
from holdfast.log.blocks import Standing, standing
from holdfast.log.ledger import Ledger
from holdfast.log.records import JobFile
from holdfast.log.store import Store
from holdfast.master import events as ev
from holdfast.master.autoscale import PerExecutor
from holdfast.master.balance import slices_auto, slices_for
from holdfast.master.feed import FeedStarted
from holdfast.plan.former import refuse_readers
from holdfast.plan.layout import layout_of
from holdfast.recovery.policies import Auto, FromStore, Line, Star, Tree
from holdfast.spark import compat
from holdfast.spark.checkpoint import SparkNotes
from holdfast.spark.hadoop import hadoop_creator
from holdfast.spark.named_sink import leave_others
from holdfast.spark.partials import Preaggregation
from holdfast.wire import socket_folder, tokens
from holdfast.wire.locations import MASTER, THIS_MACHINE, is_folder

if TYPE_CHECKING:
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
    refuse_waiting(plan)
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
    store = store_of(job)
    plan, told = laid_out(plan, Ledger(store, SECTION), lambda former: start(job, former, options))
    ledger = Ledger(store, SECTION)
    slices = _slices(job, plan, ledger, options)
    plan = plan.sized(slices)
    file = _job_file(job, plan, ledger, slices)
    plan = plan.numbered(upgrading.history(ledger, plan))
    refuse_readers(plan.planned, file.format)
    graph = ledger.graph()
    refuse_unreadable(standing(ledger), layout_of(plan.stages, slices), job.name)
    if options.drain:
        refuse_undrained(standing(ledger), job.name)
    units.refuse(plan, options)
    upgrade = upgrading.look(ledger, file, plan, options.drop, units=options.terms().checks is not None)
    loops.refuse(plan, options)
    loops.refuse_waiting(ledger, plan, slices, job.name)
    sinks = open_sinks(spark, store, file, plan.sinks)
    history, notes = History(), SparkNotes(ledger)
    for event in told:
        history.note(event.kind, event.text)
    with contextlib.ExitStack() as opened:  # closed again, the last one first, if anything goes wrong
        listen = _address(job, options)
        if is_folder(listen):
            opened.callback(socket_folder.remove, listen)
        passes = Passes(secure=not is_folder(listen) and not isinstance(options.security, Plain))
        mine = passes.of(MASTER)
        desk = Desk(listen, mine)
        opened.callback(desk.close)
        owner = ledger.take_ownership(socket.gethostname(), os.getpid(), desk.address.location)
        upgrading.refuse_rival(ledger, graph, job.name)
        if mended := notes.mend():
            history.note("mended", f"Spark's own checkpoint: {mended}")
        notes.begin_blocks(owner.incarnation)
        refuse_unreadable(standing(ledger), layout_of(plan.stages, slices), job.name)
        if upgrade is not None:
            upgrade.perform(owner.incarnation)
            for change in upgrade.changes:
                history.note("changed", change)
        blocks = standing(ledger)
        refuse_unreadable(blocks, layout_of(plan.stages, slices), job.name)
        found = look(ledger, plan, options, blocks)
        refuse_moved(moved_down(found.commit, plan, blocks))
        brain = Brain(history)
        settings = ContainerSettings(mine, listen, options.threads, hash_seed=file.hash_seed)
        host = Host(
            file.job_id,
            tuple(plan.stages),
            file.slices,
            store.uri,
            SECTION,
            options.upload,
            options.copying,
            ledger.graphs().newest,
            options.terms().checks,
        )
        launcher = _launcher(job, options, settings, desk, passes)
        if isinstance(launcher, ExecutorLauncher) and launcher.warning:
            history.note("warning", launcher.warning)
        if not _is_local(job) and (warning := open_spark(spark.sparkContext.getConf().get)):
            history.note("warning", warning)
        fleet = Fleet(launcher, host, owner.incarnation, brain.lost, options.silence, options.join_ring())
        opened.callback(fleet.close)
        routes = Routes(brain, fleet)
        opened.callback(routes.close)
        sizes, counts = Sizes(file.slices), Counts()
        above_numbers, below_numbers = counted(found, plan, options, blocks)
        log = StoreHandlers(
            ledger,
            owner.incarnation,
            history,
            notes,
            above_numbers,
            found.time,
            sizes,
            plan.stages,
            Feedback(plan.feeding, found.commit.feedback if found.commit else {}),
            units.written(ledger, plan, options, file.slices),
            loops.of(plan, file.slices, found.commit),
        )
        log.over_source = frozenset(over_source(plan))
        intake = IntakeHandlers(
            log,
            notes,
            below_numbers,
            taken_in(found.time, plan, blocks),
            layout_of(plan.stages, file.slices),
            begun_before(ledger, found, blocks),
        )
        jobs = EpochJobs(
            plan=plan,
            store=ledger.section,
            job=file.job_id,
            incarnation=owner.incarnation,
            slices=file.slices,
            token=passes.of(WORKER, answers=False),
            master=desk.address,
            routes=routes,
            log=log,
            blocks=intake,
            sizes=sizes,
            counts=counts,
            push=not store.is_local if options.push == "auto" else options.push,
            preaggregation=Preaggregation(options.preaggregate),
            sinks=sinks,
        )
        log.left_out = found.left_out
        log.resets, log.cuts = found.turns
        shell = Shell(brain, fleet, log, jobs, sizes, counts, options.sinks_at_once)
        questions = Questions(file, owner.incarnation, plan, brain, routes, fleet)
        desk.table.add(questions)
        safety = "the log alone" if options.safety is None else str(options.safety)
        run = LiveJob(
            job.name, spark, plan, ledger, shell, fleet, desk, jobs, file, options.pace, options.autoscale, safety
        )
        run.changes = LiveChanges(run, questions, host, options)
        opened.pop_all()
        opened.callback(run.stop)
        tokens.keep(file.job_id, owner.incarnation, passes.of(READER, answers=False))
        folders = Folders(spark, file, store.uri, history)
        above = [sink for name, sink in sinks.items() if name not in log.over_source]
        folders.take(above, log.sinks, found.given, found.committed + 1)
        below = [sink for name, sink in sinks.items() if name in log.over_source]
        folders.take(below, intake.sinks, found.source_given, blocks.last + 1)
        for name in leave_others(store, [sink.named.stream for sink in plan.sinks if sink.named is not None]):
            history.note("changed", f"stream '{name}' is written no more")
        _begin(run, found, blocks, options)
        opened.pop_all()
    return run


def store_of(job: Job) -> Store:
    """Its store, found to be of use."""
    store = Store(job.store)
    if not store.is_local:
        store = Store(job.store, creator=hadoop_creator(job.spark, job.store))
    store.probe()
    return store


def _slices(job: Job, plan: JobPlan, ledger: Ledger, options: Options) -> int:
    if options.slices is not None and options.slices != "auto":
        return int(options.slices)
    if known := ledger.find_job():  # the number is for life
        return known.slices
    if options.slices == "auto":
        return slices_auto([job.spark.sparkContext.defaultParallelism])
    return slices_for(len(plan.stages), more_may_come=plan.stages_may_come)


def _job_file(job: Job, plan: JobPlan, ledger: Ledger, slices: int) -> JobFile:
    wanted = JobFile(
        uuid.uuid4().hex,
        job.name,
        plan.fingerprint().to_dict(),
        slices,
        time.time_ns() // 1_000_000,
        stages=[stage.to_dict() for stage in plan.stages],
        made_names=plan.made_names,
        names=dict(plan.notes.names),
    )
    return ledger.open_or_create_job(wanted)


def _is_local(job: Job) -> bool:
    return str(job.spark.sparkContext.master).startswith("local")


def _on_executors(job: Job, options: Options) -> bool:
    local = _is_local(job)
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
    """Where the driver listens: never on more addresses than somebody needs to reach, and in a folder if all who need
    to are on this machine."""
    if options.listen != "auto":
        return options.listen
    if _is_local(job):
        return socket_folder.make()
    host = job.spark.conf.get("spark.driver.host", None) if _on_executors(job, options) else None
    return host or THIS_MACHINE


def _launcher(job: Job, options: Options, settings: ContainerSettings, desk: Desk, passes: Passes) -> Launcher:
    """On the executors if there are any, as children of the driver if it is all there is."""
    if not _on_executors(job, options):
        return ChildLauncher(settings, passes=passes.of)
    divides = compat.cores_divide(job.spark)
    launcher = ExecutorLauncher(job.spark, settings, desk.address, divides=divides, passes=passes.of)
    desk.table.add(launcher)
    return launcher


def _begin(run: LiveJob, found: Found, blocks: Standing, options: Options) -> None:
    ledger, shell, machine = run.ledger, run.shell, run.shell.machine
    checkpoints = [0, 0, *(manifest.epoch for manifest in ledger.manifests(shell.history.corrupt))]
    routing = ledger.last_routing()
    number = blocks.last + 1
    former = blocks.former  # of a store of before, whose marks are beside the prepare
    done = ledger.taken_over(number, found.source_given)
    if former is not None:
        done |= ledger.taken(found.committed + 1, found.source_given)
    begun = former or (blocks.begun.batch if blocks.begun is not None else None)
    if begun is not None:  # a sink that has come since begins with the batch after it
        done |= set(over_source(run.plan)).difference(found.source_given)
    run.draining = options.drain
    shell.begin(
        FeedStarted(
            incarnation=shell.incarnation,
            last=blocks.last,
            batch=blocks.batch,
            begun=begun,
            taken_in=former is not None,
            read=blocks.position,
            **source_sinks_of(run.plan),
            sinks_at_once=options.sinks_at_once,
            sinks_done=done,
            prefetch=options.ahead,
        ),
        ev.Started(
            incarnation=shell.incarnation,
            **sinks_of(run.plan),
            sinks_left_out=without(run.plan, found.left_out),
            levels=run.plan.levels,
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
            waiting=loops.rounds_of(found.commit.waiting) if found.commit else {},
            settle=options.settle,
            max_rounds=loops.bounds_of(run.plan),
        ),
    )
    if not found.committed and not found.prepared and not options.drain:
        # The first intake needs no container, so Spark may begin while they start.
        shell.let_epochs()
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
        shell.let_epochs()
        if not options.drain:
            run.start_query()
