"""Epochs that are larger than the memory of a container: slices in groups, a hot slice in pieces, the same result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from container_kit import World, hashes

from holdfast.container.log_reader import LogReader
from holdfast.container.slices import HeldSlice, HostedStage, Pieces, count
from holdfast.container.staging import Staging
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Fence, Prepare, Range, SegmentRef
from holdfast.log.segment import Segment, SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import AggregateSpec, Column, StageSpec
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.operators.window import WindowSpec

SLICES = 16
AGGREGATES = (
    AggregateSpec("n", "count", None, None),
    AggregateSpec("total", "sum", "v0", "double"),
    AggregateSpec("spread", "var", "v0", "double"),
    AggregateSpec("most", "max", "v1", "string"),
    AggregateSpec("newest", "last", "v1", "string"),
    AggregateSpec("unlike", "count_distinct", "v1", "string"),
)


def plan(updating: bool = False) -> StagePlan:
    aggregates = AGGREGATES[:3] if updating else AGGREGATES
    return StagePlan(
        "sums", 1, (InputPlan(1, 0),), StageSpec((Column("k", "bigint"),), aggregates, updating_input=updating)
    )


def block(rng: np.random.Generator, rows: int, keys: int, text: int, hot: int | None = None) -> pa.RecordBatch:
    """Random rows; with ``hot`` all keys are of that slice."""
    picked = rng.integers(0, keys, rows)
    hashed = hashes(picked)
    if hot is not None:
        hashed = hashed - hashed % SLICES + hot
    words = pa.array([f"{number:0{text}d}" for number in range(100)]).take(pa.array(rng.integers(0, 100, rows)))
    values = rng.normal(0, 1e6, rows)
    return pa.record_batch({"_h": pa.array(hashed), "k0": pa.array(picked), "v0": pa.array(values), "v1": words})


def write(ledger: Ledger, epoch: int, segments: list[Iterator[pa.RecordBatch]]) -> Prepare:
    """An epoch as intake writes it: blocks of rows, none held longer than it takes to write it."""
    fence, refs = Fence(1, epoch, 1), []
    for partition, blocks in enumerate(segments):
        writer = SegmentWriter(SLICES)

        def parts(writer: SegmentWriter = writer, blocks: Iterator[pa.RecordBatch] = blocks) -> Iterator[Any]:
            for rows in blocks:
                writer.append(0, rows, np.asarray(rows.column(0)) % SLICES)
                yield from writer.take_parts()
            yield from writer.parts()

        name = segment_name(fence, 1, partition, partition)
        nbytes = ledger.section.write(name, parts(), sync=False)
        refs.append(SegmentRef(name, writer.rows, nbytes, writer.checksum, partition, partition))
    return ledger.put_prepare(Prepare(fence, 1, {FEED: Range(epoch, epoch)}, tuple(refs), clock=0))


def applied(ledger: Ledger, of: StagePlan, prepares: list[Prepare], apply_bytes: int) -> tuple[list[Any], set[str]]:
    """What each slice then is, bit for bit, and how its rows came."""
    reader = LogReader(ledger, Staging(0), SLICES, apply_bytes)
    operator = of.build()
    stage = HostedStage(of, operator, {number: HeldSlice(operator.new_slice()) for number in range(SLICES)})
    ways = set()
    for prepare in prepares:
        seen = 0
        for group in reader.groups(stage, prepare, range(SLICES)):
            ways.add("pieces" if group.in_pieces else "part" if group.part else "whole")
            inputs = reader.inputs_of(stage, prepare, group)
            for number in group.slices:
                stage.advance(stage.held(number).state, prepare, inputs.get(number), {})
            seen += sum(map(count, inputs.values()))
        assert seen == sum(ref.rows for ref in prepare.segments)
    tables = range(len(operator.layouts))
    last = prepares[-1].fence.epoch
    found = [
        [stage.held(number).state.delta(0, last, table=table).to_pydict() for table in tables]
        + [stage.held(number).state.outputs(last, "changelog").to_pydict()]
        for number in range(SLICES)
    ]
    for number in range(SLICES):  # and it can be taken back
        stage.held(number).state.undo()
        found[number].append(stage.held(number).state.read(last - 1).to_pydict())
    return found, ways


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(Store(str(tmp_path / "store")), "main")


@pytest.mark.parametrize("hot", [None, 3])
def test_groups_and_pieces_make_the_same_slices_bit_for_bit(ledger: Ledger, hot: int | None) -> None:
    rng = np.random.default_rng(11)
    prepares = [
        write(ledger, epoch, [(block(rng, 5000, 400, 20, hot) for _ in range(3)) for _ in range(3)])
        for epoch in (1, 2, 3)
    ]
    whole, once = applied(ledger, plan(), prepares, 1 << 30)
    assert once == {"whole"}
    for apply_bytes in (600_000, 200_000):
        found, ways = applied(ledger, plan(), prepares, apply_bytes)
        assert ways == {"part" if hot is None else "pieces"} | ({"part"} if hot else set())
        assert found == whole


def test_rows_taken_back_in_a_later_piece(ledger: Ledger) -> None:
    """Whether a key dies, or has more rows taken back than it got, is judged when all pieces have come."""
    keys = np.repeat(np.arange(50), 100)
    hashed = hashes(keys) - hashes(keys) % SLICES
    signs = np.ones(len(keys), np.int8)

    def rows(sign: int) -> pa.RecordBatch:
        columns = {"_h": pa.array(hashed), "k0": pa.array(keys), "v0": pa.array(keys * 0.5), "v1": pa.array(keys)}
        return pa.record_batch({**columns, "_d": pa.array(sign * signs)})

    first = write(ledger, 1, [iter([rows(1)])])
    second = write(ledger, 2, [iter([rows(-1), rows(1), rows(-1)])])
    whole, _ = applied(ledger, plan(updating=True), [first, second], 1 << 30)
    found, ways = applied(ledger, plan(updating=True), [first, second], 20_000)
    assert "pieces" in ways
    assert found == whole
    assert found[0][-2]["n"] == [100] * 50  # taken back once; nothing came in their place


def test_a_stage_that_needs_all_rows_of_a_slice_gets_them(ledger: Ledger) -> None:
    keys, values = (Column("k", "bigint"),), (Column("v0", "double"),)
    spec = WindowSpec(keys, AGGREGATES[:2], values, size=10, every=10, unit="rows", time=None)
    of = StagePlan("windows", 1, (InputPlan(1, 0),), spec)
    assert not of.build().gradual
    rng = np.random.default_rng(3)
    prepare = write(ledger, 1, [iter([block(rng, 5000, 10, 20, hot=3)])])
    whole, _ = applied(ledger, of, [prepare], 1 << 30)
    found, ways = applied(ledger, of, [prepare], 20_000)
    assert ways == {"part"}
    assert found == whole


def test_pieces_are_bounded_and_count_their_rows(ledger: Ledger) -> None:
    rng = np.random.default_rng(5)
    prepare = write(ledger, 1, [(block(rng, 2000, 50, 40, hot=1) for _ in range(10)) for _ in range(2)])
    reader, of = LogReader(ledger, Staging(0), SLICES, 200_000), plan()
    operator = of.build()
    stage = HostedStage(of, operator, {1: HeldSlice(operator.new_slice())})
    (group,) = reader.groups(stage, prepare, [1])
    ((pieces,),) = reader.inputs_of(stage, prepare, group).values()
    assert isinstance(pieces, Pieces)
    sizes = [len(piece) for piece in pieces]
    assert sum(sizes) == pieces.rows == 40_000
    assert max(sizes) <= 2 * 2000  # half of what is allowed, and the chunk that went over it


def test_a_chunk_gives_only_what_is_wanted() -> None:
    rng = np.random.default_rng(7)
    writer = SegmentWriter(SLICES)
    rows = block(rng, 3000, 500, 10)
    writer.append(0, rows, np.asarray(rows.column(0)) % SLICES)
    segment = Segment.open(writer.to_bytes(), "a segment")
    wanted = np.zeros(SLICES, bool)
    wanted[[2, 3, 9]] = True
    for chunk in segment.chunks(0, wanted):
        few = chunk.only(wanted)
        assert few.slices.tolist() == [number for number in chunk.slices.tolist() if wanted[number]]
        for at, number in enumerate(few.slices.tolist()):
            there = chunk.slices.tolist().index(number)
            mine = few.rows.slice(few.bounds[at], few.bounds[at + 1] - few.bounds[at])
            assert mine.equals(chunk.rows.slice(chunk.bounds[there], chunk.bounds[there + 1] - chunk.bounds[there]))
    sizes = segment.nbytes_of(0)
    assert np.isclose(sizes.sum(), sum(chunk.rows.nbytes for chunk in segment.chunks(0)), rtol=0.05)


def peak(pid: int) -> int:
    """The most that was ever resident of a process, in MiB, mapped files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) >> 10
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("mib", [384, pytest.param(4096, marks=pytest.mark.heavy)])
def test_an_epoch_larger_than_memory_does_not_end_a_container(tmp_path: Path, mib: int) -> None:
    """100,000 keys on one container, half of the rows in one slice: what is resident does not grow with the epoch."""
    large = StagePlan("sums", 1, (InputPlan(1, 0),), StageSpec((Column("k", "bigint"),), AGGREGATES[:5]))
    world = World(tmp_path, 1, [large], SLICES, processes=True)
    try:
        world.own("c0", range(SLICES))
        pid = world.processes["c0"].pid
        before = peak(pid)
        rng = np.random.default_rng(1)
        alike = [block(rng, 32_768, 100_000, 400, hot) for hot in (None, 5)]
        blocks = round(mib * 2**20 / sum(rows.nbytes for rows in alike))
        prepare = write(world.ledger, 1, [repeat(rows, blocks) for rows in alike])
        assert sum(ref.nbytes for ref in prepare.segments) > 0.95 * mib * 2**20
        world.prepares[1] = prepare
        answer = world.apply("c0", 1, range(SLICES))
        # Hashes are not keys': a key of both blocks is in two slices.
        pairs = [pa.table([rows.column("_h"), rows.column("k0")], names=["h", "k"]) for rows in alike]
        distinct = pa.concat_tables(pairs).group_by(["h", "k"]).aggregate([]).num_rows
        assert answer.stages["sums"].rows == distinct
        assert peak(pid) <= 1024
        assert peak(pid) - before <= 550, f"{before} MiB before, at most {peak(pid)}"
    finally:
        world.close()
