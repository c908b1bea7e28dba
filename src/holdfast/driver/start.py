"""Starting a job: everything is opened, checked against the store and told to the master, or closed again."""

from __future__ import annotations

import os
import secrets
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.api.options import Options
from holdfast.api.run import SECTION, Run
from holdfast.driver import upgrade as upgrading
from holdfast.driver.endpoint import Desk
from holdfast.driver.epochs import EpochJobs
from holdfast.driver.loop import Shell, sink_is_gone
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import ContainerError, CorruptionError, PlanError, StoreError
from holdfast.invariants import some
from holdfast.launch.executors import ExecutorLauncher
from holdfast.launch.fleet import Fleet
from holdfast.launch.local import ChildLauncher, ContainerSettings, Launcher
from holdfast.log.ledger import Ledger
from holdfast.log.records import JobFile
from holdfast.log.store import Store
from holdfast.master import events as ev
from holdfast.master.autoscale import PerExecutor
from holdfast.master.balance import slices_auto
from holdfast.plan.former import refuse_readers
from holdfast.recovery.policies import Auto, FromStore, Line, Star, Tree
from holdfast.spark import claims, compat
from holdfast.spark.claims import Claim
from holdfast.spark.hadoop import hadoop_creator
from holdfast.spark.partials import Preaggregation
from holdfast.spark.sinks import FileSink, Sink, for_each_batch, open_sink
from holdfast.wire import tokens

if TYPE_CHECKING:
    from holdfast.api.job import Job
    from holdfast.plan.graph import Sink as SinkPlan
    from holdfast.spark.stream import JobPlan

READY_SECONDS = 180.0


def start(job: Job, plan: JobPlan, options: Options) -> Run:
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

    run: Run | None = None

    def the_run() -> Run:
        return some(run, "asked before there is a run")

    desk = Desk(
        listen,
        token,
        {
            "locate": lambda header: the_run()._locate(header),
            "describe": lambda header: the_run()._describe(header),
            "renew": lambda header: the_run()._renew(header),
        },
    )
    opened: list[Any] = [desk]
    try:
        owner = ledger.take_ownership(socket.gethostname(), os.getpid(), desk.address.location)
        shell = Shell(ledger, owner.incarnation, lambda: the_run()._fleet, {sink.name: sink for sink in plan.sinks})
        opened.append(shell)
        upgrading.refuse_rival(ledger, graph, job.name)
        if mended := shell.notes.mend():
            shell.history.note("mended", f"Spark's own checkpoint: {mended}")
        if upgrade is not None:
            upgrade.perform(owner.incarnation)
            for change in upgrade.changes:
                shell.history.note("changed", change)
        settings = ContainerSettings(token, listen, options.threads, hash_seed=file.hash_seed)
        launcher = _launcher(job, options, settings, desk)
        if isinstance(launcher, ExecutorLauncher) and launcher.warning:
            shell.history.note("warning", launcher.warning)
        host = {
            "job": file.job_id,
            "incarnation": owner.incarnation,
            "stages": [stage.to_dict() for stage in plan.stages],
            "slices": file.slices,
            "store": store.uri,
            "section": SECTION,
            "upload": options.upload,
        }
        if (ring := options.ring()) is not None:
            host["ring"] = ring
        fleet = Fleet(launcher, host, shell.lost, options.silence)
        opened.append(fleet)
        push = options.push
        jobs = EpochJobs(
            plan=plan,
            store=ledger.section,
            job=file.job_id,
            incarnation=owner.incarnation,
            slices=file.slices,
            token=token,
            master=lambda: desk.address,
            groups=shell.groups,
            push_groups=shell.push_groups,
            push=not store.is_local if push == "auto" else push,
            preaggregation=Preaggregation(options.preaggregate),
            sinks=sinks,
            collect=shell.collect,
            sizes=shell.size_of,
            observed=lambda: the_run()._observed(),
            clock=shell.now,
            watermark=lambda stage: the_run()._shell.time.watermarks.get(stage),
        )
        safety = "the log alone" if options.safety is None else str(options.safety)
        run = Run(job, plan, ledger, shell, fleet, desk, jobs, file, options.pace, options.autoscale, safety)
        opened = [run]
        tokens.keep(file.job_id, owner.incarnation, token)
        _begin(run, owner.incarnation, options)
    except BaseException:
        for thing in reversed(opened):
            thing.stop() if isinstance(thing, Run) else thing.close()
        raise
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
    launcher = ExecutorLauncher(job.spark, settings, lambda: desk.address, divides=compat.cores_divide(job.spark))
    desk.answer(launcher.questions)
    return launcher


def _begin(run: Run, incarnation: int, options: Options) -> None:
    ledger, shell = run._ledger, run._shell
    commit = ledger.last_committed()
    committed = commit.fence.epoch if commit else 0
    prepared = []
    last = ledger.get_prepare(committed, 1) if committed else None
    if committed and last is None:
        raise CorruptionError(
            f"Epoch {committed} is committed, but its prepare is gone from {ledger.section.uri}.",
            safe="Nothing was changed.",
            todo="Bring the file back from a copy of the store.",
        )
    counters = last.sinks if last else {}
    drawn, dropped = [sink.name for sink in run._plan.sinks], frozenset(options.drop_sinks)
    given: tuple[str, ...] = ()
    for level in range(1, run._plan.levels + 1):
        found = ledger.get_prepare(committed + 1, level)
        if found is None:
            break
        ledger.refuse_former_graph(found)
        if level == 1:
            given = tuple(name for name in found.given_to(counters) if name not in dropped)
            if gone := [name for name in given if name not in drawn]:
                raise sink_is_gone(gone, committed + 1)
        prepared.append(ev.Prepared(level, found.fence, found.ranges, given))
    _take_folders(run, committed, counters, given)
    manifests = ledger.manifests(shell.history.corrupt)
    routing = ledger.last_routing()
    shell.begin(
        ev.Started(
            incarnation=incarnation,
            levels=run._plan.levels,
            sinks=tuple(drawn),
            slices=run._file.slices,
            containers=options.containers,
            safety=options.terms(),
            from_copies=not isinstance(options.way_back, FromStore),
            by_ring=isinstance(options.way_back, Star | Line | Tree | Auto),
            committed=committed,
            ranges=commit.ranges if commit else {},
            prepared=tuple(prepared),
            sinks_done=ledger.taken(committed + 1, given),
            routing=ev.Routing(routing.version, tuple(routing.owners)) if routing else None,
            checkpoint=manifests[-1].epoch if manifests else 0,
        ),
        run._jobs,
        counters,
        dropped,
        _timekeeper(run, committed),
        options.copy_bandwidth,
    )
    if not committed and not prepared:
        # The first intake needs no container, so Spark may begin while they start.
        run._start_query()
    if not shell.wait_for(lambda: shell.machine.gathered, READY_SECONDS):
        raise ContainerError(f"The containers of job '{run.job.name}' did not come up in {READY_SECONDS:.0f} s.")
    run._raise_error()
    if run.query is None:
        # State that cannot be brought back must be known before anything new is written.
        while not shell.wait_for(lambda: shell.machine.whole or shell.restore_failure is not None, 60):
            pass
        run._raise_error()
        if shell.restore_failure is not None:
            raise shell.restore_failure
        run._start_query()


def _timekeeper(run: Run, committed: int) -> Timekeeper:
    """Time as the last committed epoch left it, and as far as the next one has been prepared."""
    keeper = Timekeeper(run._plan.stages)
    for epoch in (committed, committed + 1) if committed else (1,):
        level = 1  # of all levels there were: a stage may be on another one than before
        while (prepare := run._ledger.get_prepare(epoch, level)) is not None:
            keeper.take(prepare)
            level += 1
    return keeper


def _take_folders(run: Run, committed: int, counters: Mapping[str, int], given: Sequence[str]) -> None:
    """Spark's file sink skips numbers that it has seen: a folder must be as far as this store says it is, and ours."""
    files = [sink for sink in run._jobs.sinks.values() if isinstance(sink, FileSink)]
    for sink in files:
        ours = Claim(run._file.job_id, sink.name, run.job.name, run._ledger.store.uri)
        claimed = claims.look(run.job.spark, sink.path, ours)
        expected = counters.get(sink.name, -1)
        if sink.name in given and sink.mend(expected + 1):
            what = f"sink '{sink.name}': what it had of epoch {committed + 1} is written again"
            run._shell.history.note("mended", what)
        found = sink.newest()
        if found != expected and not (sink.name in given and found == expected + 1):
            raise StoreError(
                f"Sink '{sink.name}' writes to {sink.path}, where {found + 1} epochs of it are, "
                f"but this store knows of {expected + 1}.",
                safe="Nothing was written.",
                todo="Give the sink a folder of its own, or the folder and the name that it had with this store.",
            )
        if not claimed:
            claims.take(run.job.spark, sink.path, ours)


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
