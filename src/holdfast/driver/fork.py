"""A new store that begins with a snapshot of another job: that job's state and place in its sources, and nothing else.

What is written is what a store would hold whose job had stopped after that epoch: one checkpoint, the epoch's prepares
without their rows, its commit, and Spark's checkpoint as it was, under another query id. ``job.json`` comes last. From
then on the store is like any other: it goes on, or is changed as any job may be (``upgrade``).

Everything but ``job.json`` has the same bytes whoever writes it, so a fork that was cut off is begun again over what is
there. Packs may be there twice: those count that the graph or the manifest names, which is written once. The sinks are
not taken along: the new job writes to places of its own, from its first epoch on.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

from holdfast import faults
from holdfast.driver.live_job import SECTION
from holdfast.driver.snapshots import Snapshot
from holdfast.errors import CorruptionError, PlanError, StoreError
from holdfast.invariants import some
from holdfast.log.blocks import Block
from holdfast.log.ledger import FORKING, Ledger
from holdfast.log.pack import Pack, pack_name, parse_pack_name
from holdfast.log.probe import PROBED
from holdfast.log.records import SPARK, Carried, Fence, GraphFile, JobFile, Manifest, SegmentRef, Waiting
from holdfast.log.repair import COMMITTED, METADATA, SOURCES, checksum_name, checksums, current
from holdfast.log.segment import Segment, parse_segment_name, segment_name
from holdfast.log.snapshots import SnapshotFile, Snapshots, no_snapshot
from holdfast.log.store import Store

STEP_BYTES = 8 << 20


def fork(store: Store, name: str, begin: Snapshot | str) -> None:
    """Make that store one of job ``name`` that begins with the snapshot; one that has begun with it already goes on."""
    origin, number = _reference(begin)
    told = f"{origin}#{number}"
    if (known := Ledger(store, SECTION).find_job()) is not None:
        if known.forked == told:
            return
        begun = f"began with {known.forked}" if known.forked else "was not forked"
        raise StoreError(
            f"The store {store.uri} has job {known.name!r}, which {begun}.",
            safe="Nothing was changed.",
            todo=f"Fork {told} into an empty store; or start without fork=, to go on with what is there.",
        )
    source = Store(origin)
    snapshots = Snapshots(source)
    snapshot = snapshots.get(number)
    if snapshot is None:
        raise no_snapshot(source, number, snapshots.numbers())
    _claim(store, told)
    try:
        _write(source.sub(SECTION), snapshot, store, name, told)
    except StoreError as error:
        if snapshots.get(number) is None:  # it was let go meanwhile
            raise no_snapshot(source, number, snapshots.numbers()) from error
        raise


def _claim(store: Store, told: str) -> None:
    """Before anything else: until ``job.json`` is there the store is nobody's but this fork's."""
    if not store.exists(FORKING) and (file := next(_every(store, ""), None)) is not None:
        raise _not_empty(store, file)
    if not store.put_if_absent(FORKING, told.encode()) and store.read(FORKING).decode() != told:
        raise _not_empty(store, FORKING)


def _reference(begin: Snapshot | str) -> tuple[str, int]:
    origin, _, number = str(begin).rpartition("#") if isinstance(begin, Snapshot | str) else ("", "", "")
    if not origin or not number.isdecimal():
        raise PlanError(
            f"fork= takes a snapshot, or a text like 'the/store#3', not {begin!r}.",
            safe="Nothing was started.",
            todo="Use what run.snapshot() returned, or str() of it.",
        )
    return Store(origin).uri, int(number)


def _write(source: Store, snapshot: SnapshotFile, store: Store, name: str, told: str) -> None:
    query = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{told} -> {store.uri}"))
    small = dict(_small(snapshot, query, local=store.is_local))
    begins, _ = _beginning(snapshot, ())
    rows = {_in_fork(ref, snapshot.epoch): ref for ref in snapshot.commit.waiting_files}
    _refuse_others(store, {FORKING, begins, *small, *(f"{SECTION}/{name}" for name in rows)}, snapshot.epoch)
    packs = _named(store, snapshot)
    if packs is None:
        packs = tuple(_copy(source, old, store, snapshot.epoch, at) for at, old in enumerate(snapshot.manifest.packs))
    for file, ref in rows.items():
        _copy_rows(source, ref, store.sub(SECTION), file)
    faults.place("driver", "mid-fork", snapshot.epoch)
    if not store.put_if_absent(begins, _beginning(snapshot, packs)[1]):
        _named(store, snapshot)  # somebody else was quicker, or this fork was cut off after it: those packs count
    for file, content in small.items():
        if not store.put_if_absent(file, content) and store.read(file) != content:
            raise _not_empty(store, file)
    job = snapshot.job
    drawn = (snapshot.graph.graph, snapshot.graph.stages, snapshot.graph.made_names) if snapshot.graph else None
    graph, stages, made = drawn or (job.graph, job.stages, job.made_names)
    made_file = JobFile(
        uuid.uuid4().hex,
        name,
        graph,
        job.slices,
        time.time_ns() // 1_000_000,
        format=job.format,  # its state is as that one had it
        stages=stages,
        hash_seed=job.hash_seed,
        made_names=made,
        names=snapshot.graph.names if snapshot.graph else job.names,
        forked=told,
    )
    if not store.put_if_absent(JobFile.file, made_file.to_bytes()):
        other = Ledger(store, SECTION).find_job()
        if other is not None and other.forked == told:
            return
        raise StoreError(
            f"Somebody else has begun a job in {store.uri} just now.",
            safe="Theirs is whole; nothing of ours counts.",
            todo="Fork into a store of its own.",
        )
    faults.place("driver", "after-fork", snapshot.epoch)


def _beginning(snapshot: SnapshotFile, packs: tuple[str, ...]) -> tuple[str, bytes]:
    """The file that names the packs: the graph, or the manifest of a job that has none but its first."""
    epoch, graph, slices = snapshot.epoch, snapshot.graph, snapshot.manifest.slices
    if graph is None:
        manifest = Manifest(epoch, Fence(0, epoch, 0), packs, slices, "the job that it was forked from", 0)
        return f"{SECTION}/{manifest.file}", manifest.to_bytes()
    graph = replace(
        graph,
        epoch=epoch,
        incarnation=0,
        changes=[],
        packs=list(packs),
        slices=list(slices),
        mends=0,
        spark=SPARK,
        renamed={},
        live=False,
        former=None,
        packed=None,
        kept=False,
        splits={},
        splits_at=None,
        turns={},
        past=snapshot.past,
    )
    return graph.file, graph.to_bytes()


def _named(store: Store, snapshot: SnapshotFile) -> tuple[str, ...] | None:
    """The packs that a fork has which was begun here before, all of them whole."""
    file, _ = _beginning(snapshot, ())
    data = store.read_if_present(file)
    if data is None:
        return None
    parse = Manifest.from_bytes if snapshot.graph is None else GraphFile.from_bytes
    packs = tuple(parse(data, f"{store.uri}/{file}").packs)
    if data != _beginning(snapshot, packs)[1]:
        raise _not_empty(store, file)
    for pack in packs:
        Pack.open(store.sub(SECTION), pack).verify()
    return packs


def _small(snapshot: SnapshotFile, query: str, *, local: bool) -> Iterator[tuple[str, bytes]]:
    """All files but the packs, what names them, and the last one."""
    fence = Fence(0, snapshot.epoch, 0)  # before the first driver
    version = snapshot.graph.version if snapshot.graph else 0
    # Of Spark's notes all are synced, so the prepare needs to carry none: what counts is named (``spark.checkpoint``).
    noted = current(name for name in snapshot.spark if name.startswith(SOURCES)) if local else frozenset()
    carried = Carried(SPARK, tuple(sorted(noted)), {})
    position = snapshot.commit.position
    batch = replace(some(snapshot.batch, "a snapshot of no batch"), query_id=query)
    block = Block(Fence(0, position, 0), batch, spark=carried)  # its rows are in the checkpoint
    yield f"{SECTION}/{block.file}", block.to_bytes()
    for one in snapshot.prepares:
        prepare = replace(one, fence=fence, segments=(), routing=0, sinks={}, graph=version)
        prepare = replace(prepare, attachments=(), spark=None, batch=None)
        yield f"{SECTION}/{prepare.file}", prepare.to_bytes()
    around = [_waiting(one, snapshot.epoch) for one in snapshot.commit.waiting]
    commit = replace(snapshot.commit, fence=fence, sinks={}, dropped={}, batch=None, waiting=tuple(around))
    yield f"{SECTION}/{commit.file}", commit.to_bytes()
    notes = {METADATA: json.dumps({"id": query}).encode(), **snapshot.spark}
    done = [f"commits/{name.removeprefix('offsets/')}" for name in snapshot.spark if name.startswith("offsets/")]
    for name, content in {**notes, **dict.fromkeys(done, COMMITTED)}.items():
        yield f"{SECTION}/{SPARK}/{name}", content
        if local:  # as Hadoop has it
            yield f"{SECTION}/{SPARK}/{checksum_name(name)}", checksums(content)


def _refuse_others(store: Store, ours: set[str], epoch: int) -> None:
    for file in _every(store, ""):
        pack = parse_pack_name(file)
        if file not in ours and (pack is None or (pack[0].incarnation, pack[0].epoch) != (0, epoch)):
            raise _not_empty(store, file)


def _every(store: Store, folder: str) -> Iterator[str]:
    within = f"{folder}/" if folder else ""
    yield from (f"{within}{name}" for name in store.list(folder) if folder or not PROBED.fullmatch(name))
    for below in store.list_folders(folder):
        yield from _every(store, f"{within}{below}")


def _not_empty(store: Store, file: str) -> StoreError:
    return StoreError(
        f"A fork needs an empty store, and {store.uri} has {file}.",
        safe="What is there is as it was.",
        todo="Give the forked job a folder of its own; or, if a fork of another snapshot was cut off there, delete it.",
    )


def _copy(source: Store, old: str, store: Store, epoch: int, at: int) -> str:
    """A whole pack; its name in the fork. One that is there and not whole was cut off on its way, or somebody is still
    writing it: it is left alone, and goes when there are newer checkpoints."""
    size, section = source.size(old), store.sub(SECTION)
    for attempt in itertools.count():
        new = pack_name(Fence(0, epoch, attempt), f"fork{at}")
        if section.exists(new):
            if _whole(section, new, size):
                break
            continue
        try:
            section.write(
                new, (source.read_range(old, at, min(STEP_BYTES, size - at)) for at in range(0, size, STEP_BYTES))
            )
        except StoreError:
            if not section.exists(new):
                raise
            continue  # somebody else was quicker with the name
        try:
            Pack.open(section, new).verify()
        except CorruptionError:
            section.delete([new])
            raise
        break
    return new


def _in_fork(ref: SegmentRef, epoch: int) -> str:
    """What rows are called here that wait in a loop for the next epoch, before the first driver."""
    found = some(parse_segment_name(ref.name), f"{ref.name} is no segment")
    return segment_name(Fence(0, epoch + 1, 0), found.level, found.partition, found.task)


def _waiting(around: Waiting, epoch: int) -> Waiting:
    named = (ref if ref.inline is not None else replace(ref, name=_in_fork(ref, epoch)) for ref in around.segments)
    return replace(around, segments=tuple(named))


def _copy_rows(source: Store, ref: SegmentRef, section: Store, file: str) -> None:
    """A segment has the same bytes whoever copies it; one that is not whole was cut off on its way."""
    if section.exists(file) and section.size(file) == ref.nbytes:
        Segment.at(section, file).verify()
        return
    section.delete([file])
    steps = range(0, ref.nbytes, STEP_BYTES)
    section.write(file, (source.read_range(ref.name, at, min(STEP_BYTES, ref.nbytes - at)) for at in steps))
    copied = Segment.at(section, file)
    copied.verify()
    if copied.checksum != ref.checksum:
        raise CorruptionError(f"{source.uri}/{ref.name} is not the file that was prepared")


def _whole(section: Store, pack: str, size: int) -> bool:
    try:
        return section.size(pack) == size and Pack.open(section, pack).verify() >= 0
    except CorruptionError:
        return False
