"""The shipped ledger, janitor and container handlers in the simulated job, over a simulated disk.

The fast mode's containers are a checksum; here they are ``HostedJob`` behind its own handlers, with operators, undo
sets, copies and packs, and what they are told is what a driver would send them. The store is ``Ledger`` and ``Janitor``
over files that forget what was not synced when the power goes. Jobs are small: four slices, one level, two stages, one
of which keeps two tables a slice. The oracle is a few lines of Python over the rows that the stored prepares name.
"""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.container.backups import Backups
from holdfast.container.copies_out import Walk
from holdfast.container.handlers import Handlers, Jobs
from holdfast.container.job import HostedJob
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.driver.intake import tags_of
from holdfast.driver.store import placed
from holdfast.errors import EpochGone, FullDiskError, StoreError
from holdfast.invariants import Impossible, invariant, some
from holdfast.log.blocks import Block
from holdfast.log.files import Part
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.pack import Pack as PackFile
from holdfast.log.records import FEED, Batch, Commit, Fence, Manifest, Prepare, Range, Ranges, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store as FileStore
from holdfast.master.events import Answer, CommitStored, Pack, Prepared, PrepareStored
from holdfast.master.feed import BlockStored, StoreBlock
from holdfast.master.instructions import Instruction, SendCopies, StoreCommit, StorePrepare, ToContainer, VerifyPacks
from holdfast.master.instructions import WriteCheckpoint as Write
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.safety.policies import Terms
from holdfast.state.copies import encode
from holdfast.wire.codec import pack, unpack
from holdfast.wire.handlers import Table
from holdfast.wire.messages import Tag
from simulator.disks import Disk
from simulator.job import Job
from simulator.job_model import Container, Store
from simulator.job_store import DiskStore

SLICES = 4
KEYS = 24
STORE = "sim"
COUNTS = StagePlan(
    "counts",
    1,
    (InputPlan(1, 0),),
    StageSpec(
        (Column("k", "bigint"),),
        (AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint")),
    ),
)
VALUES = StagePlan(
    "values",
    1,
    (InputPlan(1, 0),),
    StageSpec((Column("k", "bigint"),), (AggregateSpec("values", "count_distinct", "v0", "bigint"),)),
)
"""Two tables a slice: the keys, and the values that each has had."""
PLANS = (COUNTS, VALUES)
Rows = tuple[tuple[int, int], ...]
"""(key, value)"""


def slice_of(key: int) -> int:
    return key % SLICES


def rows_of(taken: Batch | Range, fence: Fence) -> Rows:
    """What an intake finds: another try finds other rows, as a plan that is not deterministic would."""
    chance = random.Random(repr((taken, fence)))
    count = 0 if isinstance(taken, Range) and not taken else chance.choice([0, 1, 5, 30])
    return tuple((chance.randrange(KEYS), chance.randrange(10)) for _ in range(count))


def digest(rows: Iterable[tuple[object, ...]]) -> int:
    return zlib.crc32(repr(sorted(rows)).encode())


# -------------------------------------------------------------------------------------------------------------- disk


class SimulatedFiles:
    """What a store needs of a file system (``log.files.Files``), on a disk that forgets what was not synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def create(self, path: str, data: bytes) -> bool:
        """As the driver's creator on a store that is not local: whole and durable, or not at all."""
        if path in self._disk.names():
            return False
        self._disk.put(path, data)
        return True

    def write(self, path: str, parts: Iterable[Part], sync: bool) -> int:
        data = b"".join(bytes(part) for part in parts)
        if path in self._disk.names():
            raise FileExistsError(errno.EEXIST, path)
        try:
            self._disk.put(path, data, sync)
        except FullDiskError as error:
            raise OSError(errno.ENOSPC, error.what) from error
        return len(data)

    def open(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self._disk.get(path))

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        return pa.py_buffer(self._disk.get(path)[offset : offset + length])

    def size(self, path: str) -> int:
        return len(self._disk.get(path))

    def list(self, path: str) -> tuple[list[str], list[str]]:
        below = [name.removeprefix(f"{path}/") for name in self._disk.names() if name.startswith(f"{path}/")]
        files = [name for name in below if "/" not in name]
        return files, sorted({name.partition("/")[0] for name in below if "/" in name})

    def written(self, path: str, wanted: Callable[[str], bool]) -> dict[str, float]:
        return {name: 0.0 for name in self.list(path)[0] if wanted(name)}

    def delete(self, path: str) -> None:
        self._disk.get(path)
        self._disk.delete(path)

    def delete_folder(self, path: str) -> None:
        for name in [name for name in self._disk.names() if name.startswith(f"{path}/")]:
            self._disk.delete(name)


def file_store(disk: Disk, make_files: Callable[[Disk], SimulatedFiles] = SimulatedFiles) -> FileStore:
    files = make_files(disk)
    store = FileStore.__new__(FileStore)
    store._set(files, STORE, STORE, files.create)
    return store


# ------------------------------------------------------------------------------------------------------------- store


@dataclass
class ShippedStore(DiskStore):
    """The shipped ledger's files; beside them what the world knows was stored, to compare them with."""

    make_files: Callable[[Disk], SimulatedFiles] = SimulatedFiles
    _tables: list[dict[int, tuple[int, int, frozenset[int]]]] = field(default_factory=lambda: [{}])
    """Epoch → key → count, sum and values, by the stored prepares alone."""

    def ledger(self) -> Ledger:
        """As whoever starts has it: nothing of it is remembered."""
        return Ledger(file_store(self.disk, self.make_files), "main")

    def ledger_of(self, fence: Fence) -> Ledger:
        """As the driver of that fence has it."""
        return self.ledger()

    def write(self, name: str, chance: random.Random, content: bytes = b"") -> StoreError | None:
        """Whether what follows goes wrong, and how; the ledger does the writing."""
        fate = chance.random()
        error = StoreError(f"An error of the disk, writing {name}.", safe="Everything that was there before.")
        if fate < self.flaky / 2:
            raise error
        return error if fate < self.flaky else None

    def tag(self, taken: Batch | Range, fence: Fence, level: int, rows: tuple[int, ...]) -> Tag:
        """As the intake task would answer: its rows inside, or in a segment that it has written and synced."""
        found = rows_of(taken, fence)
        writer = SegmentWriter(SLICES)
        for number, mine in self.passed(found, fence).items():
            keys, values = (np.array(column, np.int64) for column in zip(*mine, strict=True))
            order = np.argsort(keys % SLICES, kind="stable")
            columns = {"_h": keys[order], "k0": keys[order], "v0": values[order]}
            writer.append(number, pa.record_batch(columns), keys[order] % SLICES)
        inside = len(found) % 2 == 0
        of = replace(fence, epoch=taken.batch_id) if isinstance(taken, Batch) else fence
        name = "" if inside else segment_name(of, level, 0, 0)
        data = writer.to_bytes()
        if not inside:
            section = self.ledger().section
            if section.exists(name):  # asked twice for one attempt: what is there is the same
                section.delete([name])
            section.write(name, [data])
        segment = SegmentRef(name, writer.rows, len(data), writer.checksum, 0, 0, input_rows=len(found))
        return unpack(pack(Tag(segment, data if inside else None)), Tag)

    def passed(self, rows: Rows, fence: Fence) -> dict[int, Rows]:
        """By input what of it has passed the filters, if anything has."""
        return {0: rows} if rows else {}

    def put_block(self, told: StoreBlock) -> BlockStored:
        attachments: list[bytes] = []
        apart: list[tuple[str, bytes]] = []
        named = replace(told.fence, epoch=told.batch.batch_id)
        segments = placed(named, 0, told.tags, attachments, apart)
        invariant(not apart, "few rows fit into a block")
        ledger = self.ledger_of(told.fence)
        ours = Block(told.fence, told.batch, segments, graph=ledger.version, attachments=tuple(attachments))
        stored = ledger.put_block(ours)
        answer = super().put_block(told)
        invariant((stored.batch, stored.fence) == (answer.batch, answer.fence), "two contents of a block")
        return answer

    def tags_of(self, ranges: Ranges) -> tuple[Any, ...]:
        super().tags_of(ranges)
        ledger = self.ledger()
        blocks = [some(ledger.get_block(number), "a block is gone") for number in ranges[FEED].numbers]
        return tuple(tag for block in blocks for tag in tags_of(block))

    def same_rows(self, epoch: int, rows: tuple[Any, ...]) -> bool:
        return True  # what is known of a prepare here are the rows of its blocks

    def _rows_taken(self, ranges: Ranges, level: int, fence: Fence) -> Rows:
        """Of the first level those of blocks, as whoever wrote them found them."""
        if level > 1:
            return rows_of(ranges[FEED], fence)
        return tuple(row for number in ranges[FEED].numbers for row in rows_of(*self.blocks[number][:2]))

    def put_prepare(self, told: StorePrepare) -> PrepareStored:
        attachments: list[bytes] = []
        apart: list[tuple[str, bytes]] = []
        segments = placed(told.fence, told.level, told.tags, attachments, apart)
        invariant(not apart, "few rows fit into a prepare")
        ours = Prepare(told.fence, told.level, told.ranges, segments, clock=0, attachments=tuple(attachments))
        stored = self.put_content(ours)
        content = Prepared(stored.level, stored.fence, stored.ranges)
        key = (stored.fence.epoch, stored.level)
        known = self.prepares.setdefault(key, (content, self._rows_taken(stored.ranges, stored.level, stored.fence)))[0]
        invariant(known == content, f"two contents of prepare {key}")
        return PrepareStored(told.id, content)

    def put_content(self, ours: Prepare) -> Prepare:
        return self.ledger_of(ours.fence).put_prepare(ours)

    def put_commit(self, told: StoreCommit, around: tuple[Any, ...] = ()) -> CommitStored:
        stored = self.ledger().put_commit(self.commit_of(told))
        answer = super().put_commit(told, around)
        invariant((stored.fence, stored.ranges) == (answer.fence, answer.ranges), "two contents of a commit")
        return answer

    def commit_of(self, told: StoreCommit) -> Commit:
        return Commit(told.fence, told.ranges)

    def put_manifest(self, epoch: int, packs: Iterable[Pack]) -> None:
        some = list(packs)
        where = {number: at for at, one in enumerate(some) for number in one.slices}
        files = tuple(str(one.file) for one in some)
        places = tuple(where[number] for number in range(SLICES))
        self.ledger().put_manifest(
            Manifest(epoch, Fence(self.owner, epoch, 0), files, places, "another", self.terms_of(epoch))
        )
        super().put_manifest(epoch, some)

    def terms_of(self, epoch: int) -> int | None:
        """The graph that a checkpoint names, if it does."""
        return None

    def cut_log(self, epoch: int) -> None:
        """By the shipped janitor; then what is gone is gone."""
        invariant(epoch < max(self.manifests), "cut at the newest checkpoint")
        Janitor(file_store(self.disk, self.make_files), "main", self.owner, lambda: None).round(epoch)
        left = {manifest.epoch for manifest in self.ledger().manifests(lambda _: None)}
        self.manifests = {one: packs for one, packs in self.manifests.items() if one in left}

    def reopened(self) -> None:
        """Somebody starts: whatever was stored, and told so, must be there."""
        ledger = self.ledger()
        commit = ledger.last_committed()
        found = commit.fence.epoch if commit else 0
        invariant(found == self.committed, f"of {self.committed} commits the store has {found}")
        there = [ledger.get_prepare(self.committed + 1, level) for level in range(1, self.levels + 1)]
        invariant(sum(one is not None for one in there) == len(self.prepared()), "a prepare is gone")
        kept = {manifest.epoch for manifest in ledger.manifests(lambda _: None)}
        invariant(self.manifests.keys() <= kept, f"manifests {self.manifests.keys() - kept} are gone")

    def unpacked(self, file: object) -> Mapping[int, int]:
        PackFile.open(self.ledger().section, str(file)).verify()
        return {}

    def check_checkpointed(self, epoch: int, slice_: int) -> None:
        self.unpacked(self.manifests[epoch][slice_])

    # --- the oracle ---------------------------------------------------------------------------------------

    def table(self, epoch: int) -> dict[int, tuple[int, int, frozenset[int]]]:
        while len(self._tables) <= epoch:
            table = dict(self._tables[-1])
            for key, value in self._rows_of(len(self._tables)):
                count, total, values = table.get(key, (0, 0, frozenset()))
                table[key] = (count + 1, total + value, values | {value})
            self._tables.append(table)
        return self._tables[epoch]

    def oracle(self, slice_: int, position: int) -> int:
        return digest(self.shown(slice_, position))

    def output(self, slice_: int, epoch: int) -> int:
        return digest(self.put_out(slice_, epoch))

    def shown(self, slice_: int, epoch: int) -> Iterator[tuple[str, int, int, int]]:
        """What a slice is."""
        return self._shown(slice_, self.table(epoch))

    def put_out(self, slice_: int, epoch: int) -> Iterator[tuple[str, int, int, int]]:
        """What an epoch puts out of a slice: its changed keys, as they are now."""
        touched = {key for key, _ in self._rows_of(epoch)}
        return self._shown(slice_, {key: self.table(epoch)[key] for key in touched})

    def _rows_of(self, epoch: int) -> Rows:
        rows: Rows = self.prepares[epoch, 1][1]  # type: ignore[assignment]  # as ``put_prepare`` has noted them
        return rows

    @staticmethod
    def _shown(
        slice_: int, table: Mapping[int, tuple[int, int, frozenset[int]]]
    ) -> Iterator[tuple[str, int, int, int]]:
        for key, (count, total, values) in table.items():
            if slice_of(key) == slice_:
                yield "counts", key, count, total
                yield "values", key, len(values), 0

    # --- faults -------------------------------------------------------------------------------------------

    def _packs(self) -> list[str]:
        return [name for name in self.disk.names() if name.endswith(".pack")]


# --------------------------------------------------------------------------------------------------------- container


class _Held(Mapping[int, Mapping[int, int]]):
    """Active slices → the epoch they are at → a digest of what they are then."""

    def __init__(self, container: ShippedContainer) -> None:
        self._container = container

    def _active(self) -> set[int]:
        stages = self._container.job.stages.values()
        return set.intersection(*(set(stage.slices) for stage in stages))

    def __getitem__(self, slice_: int) -> Mapping[int, int]:
        if slice_ not in self._active():
            raise KeyError(slice_)
        (epoch,) = {stage.slices[slice_].state.epoch for stage in self._container.job.stages.values()}
        return {epoch: some(self._container.state(slice_, epoch), "it is at that epoch")}

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._active()))

    def __len__(self) -> int:
        return len(self._active())


class ShippedContainer(Container):
    """A container's own code, told what a driver would tell it."""

    def __init__(self, name: str, store: Store, make_job: Callable[..., HostedJob] = HostedJob) -> None:
        if not isinstance(store, ShippedStore):
            raise Impossible("shipped containers read a shipped store")
        self.name, self.store = name, store
        self._threads = ThreadTable(1)
        self.job = self.hosted(store, make_job)
        jobs = Jobs(name)
        jobs.add(self.job)
        self._table = Table(Handlers(name, "token", jobs, self._threads, 0))

    def hosted(self, store: ShippedStore, make_job: Callable[..., HostedJob]) -> HostedJob:
        return make_job("j", PLANS, SLICES, store.ledger(), self._threads, Staging(0))

    def close(self) -> None:
        self.job.close()
        self._threads.close()

    def perform(self, told: ToContainer) -> Answer:
        return self._handled(told)

    def _handled(self, told: Instruction) -> Answer:
        found = some(self._table.find(type(told)), f"nobody handles {told}")
        answer: Answer = found.run(self.job, told)
        return answer

    @property
    def held(self) -> Mapping[int, Mapping[int, int]]:  # type: ignore[override]
        return _Held(self)

    @property
    def copies(self) -> Mapping[int, tuple[int, int]]:  # type: ignore[override]
        return {number: (version, 0) for number, version in self.versions(range(SLICES)).items()}

    def versions(self, slices: Iterable[int]) -> dict[int, int]:
        return self.job.backups.versions(sorted(slices))

    def state(self, slice_: int, epoch: int) -> int | None:
        return self._digest(slice_, epoch, "read")

    def output(self, slice_: int, epoch: int) -> int | None:
        return self._digest(slice_, epoch, "changed")

    def _digest(self, slice_: int, epoch: int, mode: Any) -> int | None:
        rows = self.shown(slice_, epoch, mode)
        return None if rows is None else digest(rows)

    def shown(self, slice_: int, epoch: int, mode: Any) -> list[tuple[object, ...]] | None:
        rows: list[tuple[object, ...]] = []
        try:
            for stage in self.job.stages:
                for _, batch in self.job.reading.outputs(stage, [slice_], epoch, mode):
                    rows += [(stage, *row.values(), *[0] * (3 - len(row))) for row in batch.to_pylist()]
        except EpochGone:
            return None
        return rows

    # --- copies and packs ---------------------------------------------------------------------------------

    def pinned(self, told: SendCopies) -> Mapping[int, object]:
        self.job.reading.pin(told.id, told.epoch)
        walk = Walk(self.job, told.id, told.epoch, dict.fromkeys(range(SLICES), 1))
        return {number: walk for number in told.slices if self.state(number, told.epoch) is not None}

    def unpin(self, told: SendCopies) -> None:
        self.job.reading.unpin(told.id, self.job.committed)

    def take_copy(self, slice_: int, epoch: int, state: object) -> None:
        """As a stream of copies: the parts that this one lacks, each table by itself."""
        if not isinstance(state, Walk):
            raise Impossible("a copy is sent by a walk")
        self.job.adopt(state.graph)
        backups: Backups = self.job.backups
        base, copy = max(self.versions([slice_]).get(slice_, 0), 0), f"{state.pin} {slice_}"
        if self.versions([slice_]).get(slice_, -1) >= epoch:
            return
        tables = set()
        try:
            for table, count, header, part in state.parts(slice_, base):
                tables.add(table)
                backups.receive(copy, table, slice_, header, encode([part]), count)
        except EpochGone:
            pass  # the slice has moved on: what came of it is not whole, and does not count
        finally:
            for table in tables:
                backups.end(copy, table)

    def checkpoint(self, told: Write, name: str, chance: random.Random) -> Callable[[], Answer]:
        """It reads what it pinned, however long the store takes."""
        reader = f"sim {told.id}"
        if any(self.state(number, told.epoch) is None for number in told.slices):
            raise EpochGone(f"Epoch {told.epoch} is gone.")
        self.job.reading.pin(reader, told.epoch, last=True)

        def write() -> Answer:
            try:
                if error := self.store.write(name, chance):  # type: ignore[attr-defined]
                    raise error
                return self._handled(told)
            finally:
                self.job.reading.unpin(reader, self.job.committed)

        return write

    def verify(self, told: VerifyPacks) -> Answer:
        return self._handled(told)

    def check(self) -> None:
        for slice_, versions in self.held.items():
            for epoch, state in versions.items():
                self.store.check_state(slice_, epoch, state, self.name)


# ---------------------------------------------------------------------------------------------------------- scenario


class ShippedJob(Job):
    """The scenario "job" with shipped containers and the shipped ledger; now and then the power goes.

    ``make_job`` and ``make_files`` are for planting bugs.
    """

    scenario = "job --shipped"
    store: type[ShippedStore] = ShippedStore
    container: type[ShippedContainer] = ShippedContainer

    def __init__(
        self,
        seed: int,
        trace: bool = False,
        make_job: Callable[..., HostedJob] = HostedJob,
        make_files: Callable[[Disk], SimulatedFiles] = SimulatedFiles,
        **planted: Any,
    ) -> None:
        self._make_files = make_files
        super().__init__(seed, trace, make_container=partial(self.container, make_job=make_job), **planted)

    def drawn_store(self) -> DiskStore:
        store = self.store(1, SLICES, ("a", "b")[: self.chance.randrange(3)])
        store.make_files = self._make_files
        return store

    def drawn_safety(self) -> tuple[str, Terms, dict[str, Any]]:
        """Without the ring: its pieces are played in a scenario of their own."""
        name, terms, recovery = super().drawn_safety()
        while "by_ring" in recovery:
            name, terms, recovery = super().drawn_safety()
        return name, terms, recovery

    def drawn_mishaps(self) -> list[Callable[[], None]]:
        return [*super().drawn_mishaps(), self.power, self.functions]

    def power(self) -> None:
        """It goes for everybody at once: what was not synced is gone."""
        if self.chance.random() < 0.3:
            self.world.note("all", "the power goes")
            for driver in list(self.job.drivers.values()):
                driver.crash("the power goes")
            for host in list(self.job.containers.values()):
                host.end("the power goes")
            self.job.store.disk.crash(self.chance)

    def run(self) -> str:
        try:
            return f"shipped, {super().run()}"
        finally:
            for host in self.job.containers.values():
                host.model.close()
