"""The thin shell around the pure master: it performs instructions and reports what came of them.

Three kinds of threads. One dispatcher owns the machine: it takes events off a queue, in order, and hands out what the
machine asks for. A pool does what waits on containers and the store. And Spark's own jobs run in the thread in which
Spark called ``foreachBatch``, because that thread carries the query's session, job group and cancellation.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast import faults
from holdfast.container.client import Address, Unreachable
from holdfast.errors import (
    ContainerError,
    CorruptionError,
    EpochGone,
    FencedError,
    HoldfastError,
    StoreError,
    from_wire,
)
from holdfast.log.ledger import Ledger
from holdfast.log.pack import Pack, pack_name
from holdfast.log.records import Commit, Fence, Manifest, Prepare, SegmentRef
from holdfast.log.records import Routing as RoutingFile
from holdfast.master import messages as m
from holdfast.master.machine import Master
from holdfast.plan.graph import Sink
from holdfast.spark.epoch import EpochJobs, Tag
from holdfast.spark.fleet import Fleet, group_by_owner
from holdfast.spark.scan import Groups

LOG = logging.getLogger("holdfast")
EVENTS_KEPT = 200
OWNER_SECONDS = 60.0


class Stopping(Exception):
    """The run is being stopped; the offered batch was not begun."""


@dataclass(frozen=True)
class RunEvent:
    """Something worth telling a person: a loss, a recovery, a checkpoint, a failure."""

    kind: str
    text: str
    at: float
    seconds: float = 0.0
    epoch: int = 0


@dataclass
class EpochFigures:
    """What the last epoch was like."""

    rows: int = 0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


class Shell:
    def __init__(self, ledger: Ledger, incarnation: int, fleet: Callable[[], Fleet], sinks: Mapping[str, Sink]) -> None:
        self.machine = Master()
        self.ledger = ledger
        self.incarnation = incarnation
        self.rows = 0
        self.last = EpochFigures()
        self.events: deque[RunEvent] = deque(maxlen=EVENTS_KEPT)
        self.error: HoldfastError | None = None  # the run is over
        self.failure: Exception | None = None  # the last offered batch failed
        self.restore_failure: Exception | None = None  # slices that could not be brought back
        self._fleet = fleet
        self._sinks = sinks
        self._jobs: EpochJobs | None = None
        self._counters: dict[str, int] = {}
        self._prepares: dict[int, Prepare] = {}  # of the epoch in flight, by level
        self._sizes: dict[str, dict[str, dict[str, int]]] = {}  # container → stage → changed/rows
        self._lost_at: dict[str, float] = {}
        self._clock = 0
        self._changed = threading.Condition()
        self._ledger_lock = threading.RLock()
        self._queue: queue.SimpleQueue[m.Event | None] = queue.SimpleQueue()
        self._spark: queue.SimpleQueue[m.Instruction] = queue.SimpleQueue()
        self._gate = threading.Lock()  # held while an epoch runs, and by whoever stops the run
        self._offering = 0
        self._stopping = False
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="holdfast-shell")
        self._behind = ThreadPoolExecutor(16, thread_name_prefix="holdfast-behind")  # what no epoch waits for
        self._dispatcher = threading.Thread(target=self._dispatch, daemon=True, name="holdfast-master")
        self._dispatcher.start()

    # --- from outside -------------------------------------------------------------------------------------

    def begin(self, started: m.Started, jobs: EpochJobs, counters: Mapping[str, int], clock: int) -> None:
        self._jobs = jobs
        self._counters = dict(counters)
        self._clock = clock
        self.tell(started)

    def tell(self, event: m.Event) -> None:
        self._queue.put(event)

    def lost(self, container: str, reason: str) -> None:
        self._note("lost", f"container {container} is lost: {reason}")
        with self._changed:
            self._lost_at[container] = time.monotonic()
        self.tell(m.ContainerLost(container, reason))

    def offer(self, frame: DataFrame, batch: m.Batch) -> None:
        """``foreachBatch``: returns when the batch is a committed epoch, raises when it is not."""
        with self._gate:
            self._offering = threading.get_ident()
            if self._stopping:
                raise self._failed_with(Stopping("the run is being stopped"))
            if self.error is not None:
                raise self.error
            began = time.perf_counter()
            self.tell(m.BatchOffered(batch))
            while True:
                instruction = self._spark.get()
                match instruction:
                    case m.FinishBatch() | m.FailBatch() | m.RefuseBatch() if instruction.batch != batch:
                        continue  # about an earlier offer, which has its answer
                    case m.FinishBatch():
                        self.last = replace(self.last, seconds=time.perf_counter() - began)
                        return
                    case m.FailBatch(error=error):
                        raise self._failed_with(error)
                    case m.RefuseBatch():
                        raise self._failed_with(instruction.error())
                    case m.Stop():
                        assert self.error is not None
                        raise self._failed_with(self.error)
                    case _:
                        self._run_job(frame, instruction)

    def scrub(self) -> int:
        """Read the log above the newest checkpoint back; if part is bad, checkpoint while live state is past it."""
        with self._changed:
            committed, container = (
                self.machine.committed,
                next((name for name in self.machine.routing.table if name), None),
            )
        with self._ledger_lock:
            manifests = self.ledger.manifests(self._note_corrupt)
        if container is None:
            return 0
        span = {"first": manifests[-1].epoch + 1 if manifests else 1, "last": committed}
        try:
            return int(self._fleet().call(container, "scrub", span)[0]["segments"])
        except CorruptionError as error:
            self._note_corrupt(error)
            self.tell(m.CheckpointWanted(error.what))
            raise

    def _failed_with(self, error: Exception) -> Exception:
        """Spark wraps what ``foreachBatch`` raises into text; whoever waits for the query gets the error itself."""
        self.failure = error
        return error

    def stop(self) -> None:
        """Let the epoch in flight end, and let no other begin."""
        if self._gate.locked() and self._offering == threading.get_ident():
            raise HoldfastError(
                "A run cannot be stopped from inside one of its own sinks: it would wait for itself.",
                safe="The run goes on.",
                todo="Stop it from another thread.",
            )
        self._stopping = True
        with self._gate:
            pass

    def close(self) -> None:
        self._queue.put(None)
        self._dispatcher.join(10)
        for pool in (self._pool, self._behind):
            pool.shutdown(wait=True, cancel_futures=True)

    def wait_for(self, true: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: true() or self.error is not None, seconds)

    def groups(self) -> Groups:
        """Which living container has which slices: all of them. Waits if the last container was lost just now."""
        self.wait_for(lambda: None not in self.machine.routing.table, OWNER_SECONDS)
        with self._changed:
            owners = self.machine.routing.table
        if self.error is not None:
            raise self.error
        if None in owners:
            raise ContainerError(
                f"No container took over within {OWNER_SECONDS:.0f} s.",
                safe="Everything that was committed; an epoch that is prepared will be finished by the next start.",
                todo="Look at run.status().events for why no container could start.",
            )
        return self._by_owner(owners)

    def _by_owner(self, owners: Sequence[str | None]) -> Groups:
        fleet = self._fleet()
        grouped = group_by_owner(range(len(owners)), lambda number: owners[number] or "")
        return tuple((fleet.address(name), slices) for name, slices in grouped.items() if name)

    def located(self, slices: list[int], epoch: int, level: int, mode: str, seconds: float) -> Groups:
        """Where these slices are, once their owners have what the scan wants of them."""

        def ready() -> bool:
            if mode == "read":
                return all(self.machine.owner(number) for number in slices)
            return all(self.machine.ready(number, epoch, level) for number in slices)

        self.wait_for(ready, seconds)
        if self.error is not None:
            raise self.error
        wanted = set(slices)
        with self._changed:
            owners = self.machine.routing.table
        return self._by_owner([owner if number in wanted else None for number, owner in enumerate(owners)])

    def collect(self, stage: str, epoch: int, mode: str) -> list[pa.Table] | None:
        """A small output, straight from all containers at once; None if one of them could not answer."""
        fleet = self._fleet()

        def one(group: tuple[Address, tuple[int, ...]]) -> list[pa.Table]:
            address, slices = group
            header = {"stage": stage, "slices": slices, "epoch": epoch, "mode": mode}
            _, blobs = fleet.call(address.container, "collect", header)
            return [pa.ipc.open_stream(blob).read_all() for blob in blobs]

        try:
            return [table for tables in self._pool.map(one, self.groups()) for table in tables]
        except (Unreachable, EpochGone):
            return None

    def size_of(self, stage: str, mode: str) -> int:
        """About how many rows an output of the epoch in flight has; it only decides which way they travel."""
        with self._changed:
            return sum(
                sizes.get(stage, {}).get("rows" if mode == "all" else "changed", 0) for sizes in self._sizes.values()
            )

    # --- the dispatcher -----------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                with self._changed:
                    instructions = self.machine.handle(event)
                    self._changed.notify_all()
                self._note_healing(event)
                for instruction in instructions:
                    self._perform(instruction)
            except BaseException as error:
                LOG.exception("the master failed")
                self._fatal(error if isinstance(error, HoldfastError) else HoldfastError(f"The master failed: {error}"))

    def _perform(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.RunIntake() | m.RunSink() | m.FinishBatch() | m.FailBatch() | m.RefuseBatch():
                self._spark.put(instruction)
            case m.Stop():
                self._fatal(
                    FencedError(
                        f"This driver is no longer the master of the job: {instruction.reason}.",
                        safe="The state and every committed epoch; the newer master goes on with them.",
                        todo="Stop this driver. If it should run the job, stop the other one and start this one again.",
                    )
                )
            case m.NeedContainers() | m.WriteCheckpoint() | m.VerifyPacks() | m.StoreManifest() | m.CutLog():
                self._behind.submit(self._background, instruction)
            case _:
                self._pool.submit(self._background, instruction)

    def _fatal(self, error: HoldfastError) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
        self._note("failed", str(error).splitlines()[0])
        self._spark.put(m.Stop(reason=str(error), successor=0))

    # --- in the pool --------------------------------------------------------------------------------------

    def _background(self, instruction: m.Instruction) -> None:
        try:
            if instruction.looks and not self._still_ours():
                return
            answer = self._do(instruction)
        except Unreachable:
            # Evidence is the process's end; if the connection broke and the process lives, end it.
            assert isinstance(instruction, m.ToContainer | m.VerifyPacks)
            self._suspect(instruction)
            return
        except Exception as error:
            if not isinstance(error, HoldfastError):
                LOG.exception("instruction %s failed", instruction)
            if isinstance(instruction, m.NeedContainers):
                self._fatal(error if isinstance(error, HoldfastError) else HoldfastError(str(error)))
                return
            self._note_failure(instruction, error)
            self.tell(m.Failed(instruction.id, error))
            if isinstance(instruction, m.Restore):
                with self._changed:
                    self.restore_failure = error
                    self._changed.notify_all()
            return
        if answer is not None:
            self.tell(answer)

    def _do(self, instruction: m.Instruction) -> m.Event | None:
        fleet = self._fleet()
        match instruction:
            case m.NeedContainers(count=count):
                for name in fleet.start(count):
                    self.tell(m.ContainerJoined(name))
                return None
            case m.StoreRouting(routing=routing):
                with self._ledger_lock:
                    self.ledger.put_routing(RoutingFile(routing.version, tuple(owner or "" for owner in routing.table)))
                return m.RoutingStored(instruction.id)
            case m.Restore():
                self._restore(instruction)
                return m.Restored(instruction.id)
            case m.StorePrepare():
                return m.PrepareStored(instruction.id, self._prepare(instruction))
            case m.Apply():
                self._apply(instruction)
                return m.Applied(instruction.id)
            case m.Undo(container=container, fence=fence, slices=slices):
                fleet.call(container, "undo", {"epoch": fence.epoch, "slices": sorted(slices)})
                return m.Undone(instruction.id)
            case m.StoreCommit():
                return self._commit(instruction)
            case m.WriteCheckpoint(container=container, epoch=epoch, slices=slices):
                name = pack_name(Fence(self.incarnation, epoch, instruction.fence.attempt), container)
                fleet.call(container, "checkpoint", {"epoch": epoch, "slices": sorted(slices), "pack": name})
                return m.CheckpointWritten(instruction.id, name)
            case m.VerifyPacks(by=by, packs=packs):
                files = [str(pack.file) for pack in packs]
                if by is None:
                    for file in files:
                        Pack.open(self.ledger.section, file).verify()
                else:
                    fleet.call(by, "verify", {"packs": files})
                return m.PacksVerified(instruction.id)
            case m.StoreManifest():
                self._manifest(instruction)
                return m.ManifestStored(instruction.id)
            case m.CutLog(epoch=epoch):
                # A ledger of its own: deleting many files must not hold up an epoch's commit.
                janitor = Ledger(self.ledger.store, self.ledger.section_name)
                janitor.sweep()
                janitor.cut(epoch)
                with self._ledger_lock:
                    self.ledger.forget(epoch)
                return None
        raise AssertionError(f"an instruction the shell does not know: {instruction}")

    def _still_ours(self) -> bool:
        with self._ledger_lock:
            newest = self.ledger.newest_owner()
        if newest is not None and newest.incarnation > self.incarnation:
            self.tell(m.OwnerSeen(newest.incarnation))
            return False
        return True

    def _suspect(self, instruction: m.ToContainer | m.VerifyPacks) -> None:
        container = instruction.container if isinstance(instruction, m.ToContainer) else instruction.by
        assert container is not None
        with contextlib.suppress(HoldfastError):  # its end is already known, or about to be
            self._fleet().kill(container)

    def _restore(self, instruction: m.Restore) -> None:
        """From the newest checkpoint; from the one before it if a pack of the newest cannot be read."""
        began = time.monotonic()
        with self._ledger_lock:
            manifests = [
                manifest
                for manifest in self.ledger.manifests(self._note_corrupt)
                if manifest.epoch <= instruction.checkpoint
            ]
        failure: StoreError | None = None
        for manifest in [*reversed(manifests), None][:2]:  # None: from the beginning of the log, if it is still there
            try:
                figures = self._restore_from(instruction, manifest)
            except StoreError as error:
                self._note_corrupt(error)
                failure = failure or error
                continue
            self._note(
                "restored",
                f"{len(instruction.slices)} slices on {instruction.container} at epoch {instruction.epoch}: "
                f"{figures['loaded']:,} bytes loaded, {figures['replayed']:,} rows replayed",
                seconds=time.monotonic() - began,
            )
            return
        assert failure is not None
        raise failure

    def _restore_from(self, instruction: m.Restore, manifest: Manifest | None) -> dict[str, Any]:
        packs: dict[str, list[int]] = {}
        if manifest is not None:
            for number in sorted(instruction.slices):
                packs.setdefault(manifest.pack_of(number), []).append(number)
        header = {
            "slices": sorted(instruction.slices),
            "epoch": instruction.epoch,
            "checkpoint": manifest.epoch if manifest else 0,
            "packs": packs,
        }
        return self._fleet().call(instruction.container, "restore", header)[0]

    def _prepare(self, instruction: m.StorePrepare) -> m.Prepared:
        attachments: list[bytes] = []
        refs = []
        for tag in instruction.tags:
            assert isinstance(tag, Tag)
            inline = None
            if tag.inline is not None:
                inline = len(attachments)
                attachments.append(tag.inline)
            refs.append(
                SegmentRef(
                    tag.name,
                    tag.rows,
                    tag.nbytes,
                    tag.checksum,
                    tag.partition,
                    tag.task,
                    inline,
                    tag.input_rows,
                    tag.partial,
                )
            )
        self._clock = max(self._clock, time.time_ns() // 1_000_000)
        batch = instruction.batch
        ours = Prepare(
            fence=instruction.fence,
            level=instruction.level,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            offsets=batch.offsets,
            segments=tuple(refs),
            clock=self._clock,
            routing=self.machine.routing.version,
            sinks=self._counters | {name: self._counters.get(name, -1) + 1 for name in self._sinks},
            attachments=tuple(attachments),
        )
        with self._ledger_lock:
            stored = self.ledger.put_prepare(ours)
        self._prepares[stored.level] = stored
        self._clock = max(self._clock, stored.clock)
        faults.place("driver", "after-prepare", stored.fence.epoch)
        return m.Prepared(stored.level, stored.fence, m.Batch(stored.query_id, stored.batch_id, stored.offsets))

    def _stored_prepare(self, epoch: int, level: int) -> Prepare:
        known = self._prepares.get(level)
        if known is None or known.fence.epoch != epoch:
            with self._ledger_lock:
                known = self.ledger.get_prepare(epoch, level)
            assert known is not None, f"epoch {epoch}.{level} is applied but not prepared"
            self._prepares[level] = known
        return known

    def _apply(self, instruction: m.Apply) -> None:
        prepare = self._stored_prepare(instruction.fence.epoch, instruction.level)
        # Containers hear of a commit with the next epoch: until then they only keep an undo set they need no more.
        header = {"slices": sorted(instruction.slices), "name": prepare.file, "committed": self.machine.committed}
        answer, _ = self._fleet().call(instruction.container, "apply", header, prepare.to_bytes())
        faults.place("driver", "mid-apply", instruction.fence.epoch)
        with self._changed:
            self._sizes.setdefault(instruction.container, {}).update(answer["stages"])

    def _commit(self, instruction: m.StoreCommit) -> m.CommitStored:
        epoch, batch = instruction.fence.epoch, instruction.batch
        faults.place("driver", "after-sinks", epoch)
        with self._ledger_lock:
            stored = self.ledger.put_commit(Commit(instruction.fence, batch.query_id, batch.batch_id, batch.offsets))
        faults.place("driver", "after-commit", epoch)
        first = self._stored_prepare(epoch, 1)
        self._counters = dict(first.sinks)
        read = sum(ref.input_rows for ref in first.segments)
        self.rows += read
        jobs = self._jobs
        assert jobs is not None
        changed = sum(self.size_of(item.plan.name, "changed") for item in jobs.plan.at_level(1))
        jobs.preaggregation.saw(read, sum(ref.rows for ref in first.segments), len(first.segments), changed)
        self.last = EpochFigures(read, self.last.seconds, dict(jobs.seconds))
        with self._changed:
            self._sizes.clear()
        return m.CommitStored(instruction.id, stored.fence, m.Batch(stored.query_id, stored.batch_id, stored.offsets))

    def _manifest(self, instruction: m.StoreManifest) -> None:
        packs = [str(pack.file) for pack in instruction.packs]
        where = {number: at for at, pack in enumerate(instruction.packs) for number in pack.slices}
        manifest = Manifest(
            instruction.epoch,
            instruction.fence,
            tuple(packs),
            tuple(where[number] for number in range(len(where))),
            verified_by="another container or the driver",
        )
        with self._ledger_lock:
            self.ledger.put_manifest(manifest)
        self._note("checkpoint", f"epoch {instruction.epoch}, {len(packs)} packs, verified")

    # --- in Spark's thread --------------------------------------------------------------------------------

    def _run_job(self, frame: DataFrame, instruction: m.Instruction) -> None:
        assert self._jobs is not None
        try:
            if instruction.looks and not self._still_ours():
                return
            match instruction:
                case m.RunIntake(fence=fence, level=level):
                    tags = tuple(self._jobs.intake(frame, fence, level))
                    faults.place("driver", "after-segments", fence.epoch)
                    self.tell(m.IntakeDone(instruction.id, tags))
                case m.RunSink(fence=fence, sink=name):
                    counters = self._stored_prepare(fence.epoch, 1).sinks
                    if name in counters:  # else the sink is younger than the epoch, and not part of it
                        self._jobs.sink(frame, fence.epoch, self._sinks[name], counters[name])
                    self.tell(m.SinkDone(instruction.id))
                case _:
                    raise AssertionError(f"not a job of Spark's: {instruction}")
        except Exception as error:
            cause = from_wire(str(error)) or error  # what a task raised reaches us as text
            self._note_failure(instruction, cause)
            self.tell(m.Failed(instruction.id, cause))

    # --- what people are told -----------------------------------------------------------------------------

    def _note(self, kind: str, text: str, seconds: float = 0.0) -> None:
        self.events.append(RunEvent(kind, text, time.time(), seconds, self.machine.committed))
        LOG.info("%s: %s", kind, text)

    def _note_corrupt(self, error: StoreError) -> None:
        self._note("corrupt", str(error).splitlines()[0])

    def _note_failure(self, instruction: m.Instruction, error: Exception) -> None:
        self._note(
            "failed",
            f"{type(instruction).__name__}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
        )

    def _note_healing(self, event: m.Event) -> None:
        """Tell when the last slice of a lost container is back."""
        if self._lost_at and isinstance(event, m.Restored) and self.machine.whole:
            began = min(self._lost_at.values())
            self._lost_at.clear()
            self._note("healed", "every slice has a living owner and is up to date", time.monotonic() - began)
