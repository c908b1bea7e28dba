"""What the driver, its tasks and the inboxes of containers keep, and where that ends."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_backups import OPERATORS, Owner, send, taken

from holdfast.container.backups import Backups
from holdfast.container.messages import Host
from holdfast.driver.history import History
from holdfast.driver.store import placed
from holdfast.errors import ContainerError
from holdfast.launch.fleet import GONE_KEPT, Fleet
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Fence, Range, SegmentRef
from holdfast.log.segment import Segment, SegmentWriter
from holdfast.log.store import Store
from holdfast.master import instructions as do
from holdfast.master.operations import KEPT, Operation
from holdfast.ring import node as rings
from holdfast.ring.messages import Letter, RingTerms
from holdfast.ring.node import Ring
from holdfast.ring.overlay.messages import Hello
from holdfast.spark import intake
from holdfast.spark.intake import Crossed, Intake, IntakeTask
from holdfast.wire.client import Address
from holdfast.wire.messages import Tag


def test_of_containers_that_are_gone_the_last_ones_are_shown() -> None:
    class Launcher:
        settings = SimpleNamespace(token="secret")

        def close(self) -> None: ...

    lost: list[str] = []
    fleet = Fleet(Launcher(), Host("j", (), 1, "", ""), 1, lambda name, _: lost.append(name))  # type: ignore[arg-type]
    try:
        for number in range(3 * GONE_KEPT):
            handle: Any = SimpleNamespace(pid=number, alive=False, host="h", kill=lambda: None, close=lambda: None)
            fleet._handles[f"c{number}"] = handle
            fleet._exited(f"c{number}", "killed")
            fleet._exited(f"c{number}", "killed")  # and is reported once, however often it is heard
        assert [member.pid for member in fleet.all()] == list(range(2 * GONE_KEPT, 3 * GONE_KEPT))
        assert lost == [f"c{number}" for number in range(3 * GONE_KEPT)]
    finally:
        fleet.close()


def test_operations_that_are_over_are_not_followed_for_ever() -> None:
    history = History()
    every: list[Operation] = []
    for number in range(1, 2000):
        every = [*every[-KEPT:], Operation(number, "move", "because")]
        history.follow(every)
        every[-1].done = True
        history.follow(every)
    assert len(history._followed) <= 3 * KEPT
    assert len(history.events) == 500
    assert not history.ongoing()


def test_wide_rows_are_sorted_in_smaller_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "BLOCK_BYTES", 100_000)
    flushed: list[int] = []
    append = SegmentWriter.append

    def noted(self: SegmentWriter, number: int, rows: Any, slices: Any) -> Any:
        flushed.append(rows.nbytes)
        return append(self, number, rows, slices)

    monkeypatch.setattr(SegmentWriter, "append", noted)
    wide = pa.record_batch({"_h": np.arange(100), "v0": ["x" * 400] * 100})
    tag = IntakeTask(Intake(Store(str(tmp_path)), Fence(1, 1, 1), 1, 16, (0,)), 0, 0).run(
        Crossed(wide.num_rows, ((0, wide),)) for _ in range(50)
    )
    assert tag is not None
    assert tag.segment.rows == 5000
    assert max(flushed) < 100_000 + wide.nbytes


def test_a_prepare_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
    """Rows inside tags stay inside the prepare up to a bound; what is more becomes segments, with the same rows."""

    def tag(partition: int) -> Tag:
        writer = SegmentWriter(4)
        rows = pa.record_batch({"_h": np.arange(10), "k0": np.arange(10) + partition})
        writer.append(0, rows, np.arange(10) % 4)
        inline = writer.to_bytes()
        return Tag(SegmentRef("", 10, len(inline), writer.checksum, partition, partition, input_rows=10), inline)

    tags = tuple(tag(number) for number in range(10))
    assert all(one.rows is not None for one in tags)
    ledger = Ledger(Store(str(tmp_path)), "main")
    asked = do.StorePrepare(Fence(1, 1, 1), 1, {FEED: Range(1, 1)}, tags)
    attachments: list[bytes] = []
    apart: list[tuple[str, bytes]] = []
    refs = placed(asked.fence, asked.level, asked.tags, attachments, apart, room=3 * tags[0].segment.nbytes)
    for name, rows in apart:
        ledger.section.write(name, [rows])
    assert [ref.inline for ref in refs] == [0, 1, 2, *[None] * 7]
    for ref, one in zip(refs, tags, strict=True):
        segment = (
            Segment.at(ledger.section, ref.name)
            if ref.inline is None
            else Segment.open(attachments[ref.inline], "inline")
        )
        assert segment.checksum == ref.checksum == one.segment.checksum
        assert (segment.rows, segment.nbytes) == (ref.rows, ref.nbytes)


def test_deltas_that_nobody_merges_are_merged_by_whoever_brings_more() -> None:
    owner = Owner(60)
    backups = Backups(OPERATORS, merge_every=1000, most_sealed=5)  # as if the merging thread never came to it
    try:
        for epoch in range(1, 61):
            send(backups, f"copy {epoch}", owner.parts(epoch - 1, epoch))
            assert len(backups._held[7].sealed) <= 6
        assert taken(backups) == (60, owner.full(60))
    finally:
        backups.close()


def test_an_inbox_of_the_ring_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "MOST_EVENTS", 10)
    me = Address("me", "grpc://127.0.0.1:1")
    ring = Ring(me, "secret", RingTerms(tick=60.0), lambda _: None)
    stuck, free = threading.Event(), threading.Event()

    def never(event: Any) -> None:
        stuck.set()
        free.wait(30)

    monkeypatch.setattr(ring, "_take", never)
    try:
        ring.meet([])
        stuck.wait(30)
        for _ in range(10):
            ring.ended("somebody")
        sender = Address("c1", "grpc://127.0.0.1:2")
        ring.receive(Letter(sender))  # a heartbeat brings nothing to read
        with pytest.raises(ContainerError, match="messages to read already"):
            ring.receive(Letter(sender, (Hello(answer=True),)))
    finally:
        free.set()
        ring.close()
