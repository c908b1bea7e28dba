"""The blocks of the source: one micro-batch each, as it was taken in, numbered from 1, written once.

``block/<n>`` is the commit of its batch: once it is there Spark need not offer that batch again, whoever reads the
block, and when. Few rows are inside, more are in segments that it names.

Sinks straight over the source have their rows before the block is there, so a batch that has such sinks is noted first
(``block/<n>.begun``), with Spark's own files of it: whatever happens then, the same offsets are tried again.

A store of before format 4 has no blocks for its epochs; its first block has the number after its last epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.log.records import Batch, Carried, Fence, SegmentRef, packed, segment_from, unpacked

if TYPE_CHECKING:
    from holdfast.log.ledger import Ledger

FOLDER = "block"


@dataclass(frozen=True)
class Begun:
    """That sinks over the source may have rows of a batch which has no block yet."""

    fence: Fence  # of the batch: its ``epoch`` is the number of the block to be
    batch: Batch
    sinks: dict[str, int] = field(default_factory=dict)
    """Their numbers as the batch leaves them."""
    spark: Carried | None = None
    attachments: tuple[bytes, ...] = ()

    @staticmethod
    def file_of(number: int) -> str:
        return f"{FOLDER}/{number:010d}.begun"

    @property
    def number(self) -> int:
        return self.fence.epoch

    @property
    def file(self) -> str:
        return self.file_of(self.number)

    def carried(self) -> dict[str, bytes]:
        """Spark's files that are in it."""
        return {name: self.attachments[at] for name, at in self.spark.files.items()} if self.spark else {}

    def given_to(self, before: Mapping[str, int]) -> tuple[str, ...]:
        """The sinks that get the batch: those that count on from ``before``. The number of one over a stage may be of
        long ago."""
        return tuple(name for name, number in self.sinks.items() if number > before.get(name, -1))

    def to_bytes(self) -> bytes:
        said = {"fence": asdict(self.fence), "batch": asdict(self.batch), "sinks": self.sinks}
        return packed(b"bgun", said | {"spark": asdict(self.spark) if self.spark else None}, self.attachments)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Begun:
        said, attachments = unpacked(data, name, b"bgun")
        fence, batch = Fence(**said["fence"]), Batch(**said["batch"])
        return cls(fence, batch, said["sinks"], _carried(said["spark"]), attachments)


@dataclass(frozen=True)
class Block:
    """One micro-batch as taken in: for ever the rows that the batch has."""

    fence: Fence  # its ``epoch`` is the number of the block
    batch: Batch
    segments: tuple[SegmentRef, ...] = ()  # in partition order
    times: dict[str, int] = field(default_factory=dict)  # largest event times of the batch, µs
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)  # stage → why → rows, as tags have it
    came: dict[str, int] = field(default_factory=dict)
    sinks: dict[str, int] = field(default_factory=dict)
    """The numbers of the sinks straight over the source as it leaves them."""
    unsure: dict[str, int] = field(default_factory=dict)
    """As ``Commit.dropped``, of these sinks."""
    layout: str = ""
    """A hash of the inputs that the rows were taken in for."""
    graph: int = 0
    """The version of the graph whose filters they have passed."""
    spark: Carried | None = None
    attachments: tuple[bytes, ...] = ()

    @staticmethod
    def file_of(number: int) -> str:
        return f"{FOLDER}/{number:010d}"

    @property
    def number(self) -> int:
        return self.fence.epoch

    @property
    def file(self) -> str:
        return self.file_of(self.number)

    def carried(self) -> dict[str, bytes]:
        """Spark's files that are in it."""
        return {name: self.attachments[at] for name, at in self.spark.files.items()} if self.spark else {}

    def to_bytes(self) -> bytes:
        said = {
            "fence": asdict(self.fence),
            "batch": asdict(self.batch),
            "segments": [asdict(ref) for ref in self.segments],
            "times": self.times,
            "dropped": self.dropped,
            "came": self.came,
            "sinks": self.sinks,
            "unsure": self.unsure,
            "layout": self.layout,
            "graph": self.graph,
            "spark": asdict(self.spark) if self.spark else None,
        }
        return packed(b"blck", said, self.attachments)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Block:
        said, attachments = unpacked(data, name, b"blck")
        return cls(
            Fence(**said["fence"]),
            Batch(**said["batch"]),
            tuple(segment_from(ref) for ref in said["segments"]),
            said["times"],
            said["dropped"],
            said["came"],
            said["sinks"],
            said["unsure"],
            said["layout"],
            said["graph"],
            _carried(said["spark"]),
            attachments,
        )


@dataclass(frozen=True)
class TakenOver:
    """That a sink over the source has a batch which has no block yet: one that cannot know this by itself."""

    fence: Fence
    sink: str

    @staticmethod
    def file_of(number: int, sink: str) -> str:
        return f"{FOLDER}/{number:010d}.taken-{hashlib.sha256(sink.encode()).hexdigest()[:16]}"

    @property
    def file(self) -> str:
        return self.file_of(self.fence.epoch, self.sink)

    def to_bytes(self) -> bytes:
        return packed(b"takn", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> TakenOver:
        said, _ = unpacked(data, name, b"takn")
        return cls(Fence(**said["fence"]), said["sink"])


def _carried(said: dict[str, Any] | None) -> Carried | None:
    return Carried(**(said | {"names": tuple(said["names"])})) if said else None


@dataclass(frozen=True)
class Standing:
    """How far a store's source is taken in, and how far it is read."""

    last: int = 0
    """The number of the newest block, or of the last epoch that had none."""
    batch: Batch | None = None
    """Of that."""
    position: int = 0
    """How far committed epochs have read."""
    begun: Begun | None = None
    """Of the batch after ``batch``."""
    former: Batch | None = None
    """The batch after ``batch``, if its rows are in a prepare that was written before there were blocks."""
    unread: tuple[Block, ...] = ()
    """Those above what is committed, and above what is prepared."""
    newest: Block | None = None


def unreadable(layouts: Mapping[int, str], layout: str) -> list[int]:
    """Of blocks that nobody has read, those whose rows are in terms of other inputs than these."""
    return [number for number, made_for in sorted(layouts.items()) if made_for != layout]


def standing(ledger: Ledger) -> Standing:
    """What there is of blocks. A batch of before that is prepared and not committed has its block still to come."""
    commit = ledger.last_committed()
    epoch, position = (commit.fence.epoch, commit.position) if commit else (0, 0)
    prepare = ledger.get_prepare(epoch + 1, 1)
    newest = ledger.last_block()
    batch: Batch | None
    former = prepare.batch if prepare is not None else None
    if newest is not None:
        last, batch = newest.number, newest.batch
        former = former if former is not None and last < epoch + 1 else None
    else:
        batch = former_batch(ledger, epoch)
        last = position
        if former is not None and former.tick:
            last = epoch + 1
    former = None if former is None or former.tick else former
    read = max(position, prepare.position) if prepare is not None else position
    found = (ledger.get_block(number) for number in range(read + 1, last + 1))
    return Standing(
        last,
        batch,
        position,
        ledger.begun(last + 1),
        former,
        tuple(block for block in found if block is not None),
        newest,
    )


def former_batch(ledger: Ledger, epoch: int) -> Batch | None:
    """What an epoch of before there were blocks took, or that before it if it was a tick."""
    commit = ledger.get_commit(epoch) if epoch else None
    batch = commit.batch if commit is not None else None
    return None if batch is None else replace(batch, tick=0)


def batch_at(ledger: Ledger, position: int) -> Batch | None:
    """The batch up to which that position has the source read; None if nothing says it any more."""
    if (block := ledger.get_block(position)) is not None:
        return block.batch
    return former_batch(ledger, position)


def block_of(ledger: Ledger, batch: Batch) -> tuple[int, Batch] | None:
    """The block of a batch, and what it was made of: blocks and batches are counted alike."""
    newest = ledger.last_block()
    if newest is not None:
        number = newest.number - (newest.batch.batch_id - batch.batch_id)
        if number > 0 and (block := ledger.get_block(number)) is not None:
            return number, block.batch
    for prepare in ledger.newest_first():
        if prepare.batch is not None and not prepare.batch.tick:
            if prepare.batch.batch_id == batch.batch_id:
                return prepare.fence.epoch, prepare.batch
            if prepare.batch.batch_id < batch.batch_id:
                break
    return None
