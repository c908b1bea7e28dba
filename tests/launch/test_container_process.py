"""A container as a process: who it talks to, what it does when it is full, and how it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import incubator
import numpy as np
import psutil
import pyarrow as pa
import pytest

from holdfast.container.messages import Host
from holdfast.errors import ContainerError, CorruptionError, EpochGone, FencedError
from holdfast.launch.local import ContainerProcess, ContainerSettings
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Fence, Manifest, Prepare, Range, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.wire.client import A, Client, Unreachable
from holdfast.wire.codec import MessageError, Sender, pack
from holdfast.wire.messages import Applied, Apply, Call, Mode, Pack, Restore, Undo, VerifyPacks, WriteCheckpoint
from holdfast.wire.questions import AskStatus, Locate, Pin, RowsPart, RowsPush, ScanTicket, Unpin

SLICES = 4
PLAN = StagePlan(
    "counts",
    1,
    (InputPlan(1, 0),),
    StageSpec(
        (Column("k", "bigint"),),
        (AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint")),
    ),
)


def rows_of(keys: list[int], values: list[int]) -> pa.RecordBatch:
    """Any hash will do, as long as it is always the same for a key."""
    hashes = [(key * 0x9E3779B97F4A7C15) % (1 << 63) for key in keys]
    return pa.record_batch(
        {"_h": hashes, "k0": keys, "v0": values}, pa.schema({"_h": "int64", "k0": "int64", "v0": "int64"})
    )


class Hosted:
    """A container that hosts one job, and a hand that writes the log as intake and master would."""

    def __init__(self, path: Path, staging_bytes: int = 1 << 20, process: ContainerProcess | None = None) -> None:
        self.ledger = Ledger(Store(str(path / "store")), "main")
        settings = ContainerSettings("secret", staging_bytes=staging_bytes)
        self.process = process or ContainerProcess("c0", settings, nursery=incubator.nursery())
        self.client = Client(self.process.await_ready(), "secret", Sender("j", 1))
        self.call(Host("j", (PLAN,), SLICES, self.ledger.store.uri, "main"))
        self.tell(Restore, 0, checkpoint=0)

    def call(self, message: Call[A], incarnation: int = 1) -> A:
        return self.client.call(message, sender=Sender("j", incarnation))

    def tell(self, kind: Any, epoch: int, **more: Any) -> Any:
        """An instruction for all slices, as the master would give it."""
        if "epoch" in {field.name for field in fields(kind)}:
            more["epoch"] = epoch
        return self.call(kind("c0", Fence(1, epoch, 1), frozenset(range(SLICES)), **more))

    def log(self, epoch: int, rows: pa.RecordBatch) -> tuple[SegmentWriter, str, Prepare]:
        writer = SegmentWriter(SLICES)
        writer.append(0, rows, np.asarray(rows.column(0)) % SLICES)
        fence = Fence(1, epoch, 1)
        name = segment_name(fence, 1, 0, epoch)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
        prepare = Prepare(fence, 1, {FEED: Range(epoch, epoch)}, (ref,), clock=0)
        return writer, name, self.ledger.put_prepare(prepare)

    def apply(self, prepare: Prepare) -> Applied:
        return self.tell(Apply, prepare.fence.epoch, level=1, prepare=prepare.to_bytes())  # type: ignore[no-any-return]

    def read(self, epoch: int, mode: Mode = "read") -> dict[int, tuple[int, int]]:
        ticket = ScanTicket("counts", epoch, mode, (0, 1, 2, 3))
        rows = [row for _, batch in self.client.scan(ticket) for row in batch.to_pylist()]
        return {row["k"]: (row["n"], row["total"]) for row in rows}

    def close(self) -> None:
        self.client.close()
        self.process.close()


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    made = Hosted(tmp_path)
    yield made
    made.close()


def push(hosted: Hosted, writer: SegmentWriter, name: str, slices: list[int], missing: int = 0) -> None:
    chunks = list(writer.chunks())
    head = RowsPush(1, name, 0, tuple(slices), len(chunks) + missing, writer.rows)
    stream = hosted.client.push(head, chunks[0].rows.schema, 10)
    for chunk in chunks:
        place = pack(RowsPart(chunk.slices.tobytes(), chunk.bounds.tobytes()))
        stream.write_with_metadata(chunk.rows, place)
    stream.close()


def test_apply_undo_and_read_as_of_a_committed_epoch(hosted: Hosted) -> None:
    *_, first = hosted.log(1, rows_of([1, 2, 1], [10, 20, 30]))
    hosted.apply(first)
    assert hosted.read(1) == {1: (2, 40), 2: (1, 20)}
    *_, second = hosted.log(2, rows_of([2, 3], [1, 2]))
    hosted.apply(second)
    assert hosted.read(1) == {1: (2, 40), 2: (1, 20)}, "epoch 1 is committed, 2 is not"
    assert hosted.read(2, "changed") == {2: (2, 21), 3: (1, 2)}
    hosted.apply(second)
    assert hosted.read(2) == {1: (2, 40), 2: (2, 21), 3: (1, 2)}, "applying again changes nothing"
    hosted.tell(Undo, 2)
    with pytest.raises(EpochGone):
        hosted.read(2)
    hosted.apply(second)
    assert hosted.read(2) == {1: (2, 40), 2: (2, 21), 3: (1, 2)}


def test_checkpoint_restore_and_replay(hosted: Hosted, tmp_path: Path) -> None:
    for epoch in range(1, 4):
        *_, prepare = hosted.log(epoch, rows_of([epoch, 7], [1, epoch]))
        hosted.apply(prepare)
        if epoch == 2:
            written = hosted.tell(WriteCheckpoint, 2, id="1.7")
    assert written.nbytes > 0
    truth = hosted.read(3)
    fence, everything = Fence(1, 2, 1), frozenset(range(SLICES))
    hosted.call(VerifyPacks("c0", fence, 2, (Pack("c0", everything, written.file),)))
    with pytest.raises(CorruptionError, match="is missing"):
        hosted.tell(Restore, 3, checkpoint=2)
    hosted.ledger.put_manifest(Manifest(2, fence, (written.file,), (0,) * SLICES, "the test"))
    figures = hosted.tell(Restore, 3, checkpoint=2)
    assert figures.replayed == 2, "only the rows above the checkpoint"
    assert hosted.read(3) == truth


def test_pushed_rows_save_reading_the_log(hosted: Hosted) -> None:
    writer, name, prepare = hosted.log(1, rows_of(list(range(100)), list(range(100))))
    push(hosted, writer, name, [0, 1, 2, 3])
    assert hosted.call(AskStatus()).staged > 0
    hosted.ledger.section.delete([name])
    hosted.apply(prepare)
    assert hosted.read(1) == {key: (1, key) for key in range(100)}
    assert hosted.call(AskStatus()).staged == 0, "what is applied is not kept"


def test_a_push_for_other_slices_is_not_enough(hosted: Hosted) -> None:
    writer, name, prepare = hosted.log(1, rows_of(list(range(100)), list(range(100))))
    push(hosted, writer, name, [0, 1])
    hosted.apply(prepare)
    assert hosted.read(1) == {key: (1, key) for key in range(100)}, "the rest came from the log"


def test_a_push_that_broke_off_is_not_used(hosted: Hosted) -> None:
    """To the container a client that died looks like one that was done."""
    writer, name, prepare = hosted.log(1, rows_of(list(range(100)), list(range(100))))
    push(hosted, writer, name, [0, 1, 2, 3], missing=1)
    assert hosted.call(AskStatus()).staged == 0
    hosted.apply(prepare)
    assert hosted.read(1) == {key: (1, key) for key in range(100)}


def test_a_full_container_says_read_the_log(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path, staging_bytes=1000)
    try:
        writer, name, prepare = hosted.log(1, rows_of(list(range(5000)), list(range(5000))))
        with pytest.raises(Exception, match="read the log"):
            push(hosted, writer, name, [0, 1, 2, 3])
        assert hosted.call(AskStatus()).staged == 0
        hosted.apply(prepare)
        assert hosted.read(1) == {key: (1, key) for key in range(5000)}
    finally:
        hosted.close()


def test_a_reader_that_stops_reading_holds_nobody_up(hosted: Hosted) -> None:
    *_, first = hosted.log(1, rows_of(list(range(50_000)), list(range(50_000))))
    hosted.apply(first)
    ticket = ScanTicket("counts", 1, "read", (0, 1, 2, 3))
    scan = hosted.client.scan(ticket)
    next(scan)
    *_, second = hosted.log(2, rows_of([1], [1]))
    hosted.apply(second)
    assert hosted.read(2)[1] == (2, 2)
    scan.close()  # type: ignore[attr-defined]


def test_pins_keep_an_epoch_readable(hosted: Hosted) -> None:
    *_, first = hosted.log(1, rows_of([1], [1]))
    hosted.apply(first)
    hosted.call(Pin("r", 1))
    for epoch in (2, 3, 4):
        *_, prepare = hosted.log(epoch, rows_of([1], [1]))
        hosted.apply(prepare)
    assert hosted.read(1) == {1: (1, 1)}
    hosted.call(Unpin("r"))
    with pytest.raises(EpochGone, match="read again"):
        hosted.read(1)
    assert hosted.read(3) == {1: (3, 3)}


def test_a_replaced_master_is_refused(hosted: Hosted) -> None:
    hosted.call(AskStatus(), 2)
    with pytest.raises(FencedError, match="has been replaced by master 2"):
        hosted.call(AskStatus(), 1)


def test_unknown_jobs_and_actions(hosted: Hosted) -> None:
    with pytest.raises(ContainerError, match="does not host job"):
        hosted.client.call(AskStatus(), sender=Sender("other", 1))
    with pytest.raises(MessageError, match="A container does not take 'Locate'"):
        hosted.call(Locate((0,), 1, 1, "read"))


def test_a_dead_container_is_unreachable(hosted: Hosted) -> None:
    hosted.process.kill()
    with pytest.raises(Unreachable):
        hosted.call(AskStatus())


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """Also when the parent gets no chance to say so."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\n"
        "from holdfast.launch.local import ContainerProcess, ContainerSettings\n"
        "child = ContainerProcess('c0', ContainerSettings('secret'))\n"
        "child.await_ready()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, 9)
        deadline = time.monotonic() + 120
        with contextlib.suppress(psutil.NoSuchProcess):
            while child.status() != psutil.STATUS_ZOMBIE:  # whoever inherits it may reap it late
                assert time.monotonic() < deadline, "it outlives its parent"
                time.sleep(0.02)
