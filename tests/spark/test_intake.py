"""What a task makes of its rows, without Spark around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.log.records import Fence
from holdfast.log.segment import Segment
from holdfast.log.store import Store
from holdfast.spark import intake
from holdfast.spark.intake import Crossed, Intake, IntakeTask
from holdfast.wire.codec import pack, unpack
from holdfast.wire.messages import Tag


def batches(count: int, rows: int) -> list[pa.RecordBatch]:
    draw = np.random.default_rng(3)
    return [
        pa.record_batch({"_h": draw.integers(-(1 << 63), 1 << 63, rows), "k0": np.arange(rows) + number * rows})
        for number in range(count)
    ]


def crossed(given: list[pa.RecordBatch]) -> Iterator[Crossed]:
    return (Crossed(rows.num_rows, ((0, rows),)) for rows in given)


@pytest.mark.parametrize("held", [1 << 30, 1, 100_000], ids=["whole", "piecemeal", "in-between"])
def test_a_large_task_writes_while_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(intake, "HELD_BYTES", held)
    monkeypatch.setattr(intake, "BLOCK_ROWS", 2000)
    store = Store(str(tmp_path))
    given = batches(20, 1000)
    tag = IntakeTask(Intake(store, Fence(1, 2, 3), 1, 16, (0,), inline_bytes=0), 4, 5).run(crossed(given))
    assert tag is not None
    assert tag.rows is None
    named = tag.segment
    assert named.name == "log/0000000002.1-1-3-00004-5.seg"
    segment = Segment.at(store, named.name)
    assert segment.checksum == named.checksum
    assert segment.nbytes == named.nbytes
    assert segment.rows == named.rows == named.input_rows == 20_000
    found = pa.Table.from_batches([chunk.rows for chunk in segment.chunks(0)]).sort_by("k0")
    assert found.equals(pa.Table.from_batches(given))
    for chunk in segment.chunks(0):
        for at, number in enumerate(chunk.slices):
            hashes = np.asarray(chunk.rows.column(0))[chunk.bounds[at] : chunk.bounds[at + 1]]
            assert (hashes % 16 == number).all()


def test_few_rows_travel_inside_the_tag(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    tag = IntakeTask(Intake(store, Fence(1, 2, 3), 1, 16, (0,)), 0, 0).run(crossed(batches(1, 10)))
    assert tag is not None
    assert tag.rows is not None
    assert tag.segment.name == ""
    assert Segment.open(tag.rows, "inline").rows == 10
    assert unpack(pack(tag), Tag) == tag, "as Spark takes it to the driver"
    assert store.list("log") == []


def test_no_rows_no_tag(tmp_path: Path) -> None:
    assert IntakeTask(Intake(Store(str(tmp_path)), Fence(1, 2, 3), 1, 16, (0,)), 0, 0).run(iter([])) is None
