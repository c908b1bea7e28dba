"""A new store that begins with a snapshot of another job: that job's state and place in its sources, and nothing else.

What is written is what a store would hold whose job had stopped after that epoch: one checkpoint, the epoch's prepares
without their rows, its commit, and Spark's checkpoint as it was, under another query id. ``job.json`` comes last. From
then on the store is like any other: it goes on, or is changed as any job may be (``upgrade``).

Everything but ``job.json`` has the same bytes whoever writes it, so a fork that was cut off is begun again over what is
there. The sinks are not taken along: the new job writes to places of its own, from its first epoch on.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

from holdfast import faults
from holdfast.driver.live_job import SECTION
from holdfast.driver.snapshots import Snapshot
from holdfast.errors import PlanError, StoreError
from holdfast.log.ledger import FORKING, Ledger
from holdfast.log.pack import Pack, pack_name
from holdfast.log.probe import PROBED
from holdfast.log.records import FEED, SPARK, Carried, Fence, JobFile, Manifest, Ranges
from holdfast.log.repair import COMMITTED, METADATA, SOURCES, checksum_name, checksums, current
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
    packs = {pack: _pack_in_fork(snapshot.epoch, at) for at, pack in enumerate(snapshot.manifest.packs)}
    query = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{told} -> {store.uri}"))
    small = dict(_small(snapshot, tuple(packs.values()), query, local=store.is_local))
    _refuse_others(store, {FORKING, *small, *(f"{SECTION}/{pack}" for pack in packs.values())})
    for old, new in packs.items():
        _copy(source, old, store, f"{SECTION}/{new}")
    faults.place("driver", "mid-fork", snapshot.epoch)
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


def _small(snapshot: SnapshotFile, packs: tuple[str, ...], query: str, *, local: bool) -> Iterator[tuple[str, bytes]]:
    """All files but the packs and the last one."""
    epoch, graph = snapshot.epoch, snapshot.graph
    fence = Fence(0, epoch, 0)  # before the first driver
    version = graph.version if graph else 0
    slices = snapshot.manifest.slices
    if graph is not None:
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
            past=snapshot.past,
        )
        yield graph.file, graph.to_bytes()
    else:
        manifest = Manifest(epoch, fence, packs, slices, "the job that it was forked from", 0)
        yield f"{SECTION}/{manifest.file}", manifest.to_bytes()
    # Of Spark's notes all are synced, so the prepare needs to carry none: what counts is named (``spark.checkpoint``).
    noted = current(name for name in snapshot.spark if name.startswith(SOURCES)) if local else frozenset()
    carried = Carried(SPARK, tuple(sorted(noted)), {})
    for one in snapshot.prepares:  # their rows are in the checkpoint
        prepare = replace(
            one, fence=fence, ranges=_of(one.ranges, query), segments=(), routing=0, sinks={}, graph=version
        )
        prepare = replace(prepare, attachments=(), spark=carried if one.level == 1 else None)
        yield f"{SECTION}/{prepare.file}", prepare.to_bytes()
    commit = replace(snapshot.commit, fence=fence, ranges=_of(snapshot.commit.ranges, query), sinks={}, dropped={})
    yield f"{SECTION}/{commit.file}", commit.to_bytes()
    notes = {METADATA: json.dumps({"id": query}).encode(), **snapshot.spark}
    done = [f"commits/{name.removeprefix('offsets/')}" for name in snapshot.spark if name.startswith("offsets/")]
    for name, content in {**notes, **dict.fromkeys(done, COMMITTED)}.items():
        yield f"{SECTION}/{SPARK}/{name}", content
        if local:  # as Hadoop has it
            yield f"{SECTION}/{SPARK}/{checksum_name(name)}", checksums(content)


def _of(ranges: Ranges, query: str) -> Ranges:
    return {stream: replace(batch, query_id=query) if stream == FEED else batch for stream, batch in ranges.items()}


def _pack_in_fork(epoch: int, at: int) -> str:
    return pack_name(Fence(0, epoch, 0), f"fork{at}")


def _refuse_others(store: Store, ours: set[str]) -> None:
    for file in _every(store, ""):
        if file not in ours:
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


def _copy(source: Store, old: str, store: Store, new: str) -> None:
    """A whole pack. One that is there and is not whole was cut off on its way."""
    size = source.size(old)
    if store.exists(new):
        if store.size(new) == size:
            Pack.open(store, new).verify()
            return
        store.delete([new])
    store.write(new, (source.read_range(old, at, min(STEP_BYTES, size - at)) for at in range(0, size, STEP_BYTES)))
    Pack.open(store, new).verify()
