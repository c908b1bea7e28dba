"""Snapshots of a job: one committed epoch, kept until somebody lets it go, from which another job can begin.

``snapshot/<k>`` is one file and has all that a job is at that epoch, but for the packs of a checkpoint, which it names:
what the job was, its graph, the epoch's prepares and commit, and Spark's own notes of how far its sources were read.
While the file is there the janitor leaves those packs alone, and segments of rows that wait in loops; nothing else
needs to be kept for it.

A number is never used again: of one that was let go ``snapshot/<k>.gone`` stays, until a higher number is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.errors import CorruptionError, StoreError
from holdfast.log.numbered import read_record
from holdfast.log.records import Batch, Commit, GraphFile, JobFile, Manifest, Prepare, packed, unpacked
from holdfast.log.store import Store

FOLDER = "snapshot"
_RECORD = re.compile(r"\d{10,}")
_GONE = re.compile(r"(\d{10,})\.gone")


@dataclass(frozen=True)
class SnapshotFile:
    number: int
    created: int  # ms
    until: int | None  # ms; None: until it is forgotten
    job: JobFile
    graph: GraphFile | None
    """In whose terms its checkpoint is; None: that of the job file."""
    manifest: Manifest
    commit: Commit
    prepares: tuple[Prepare, ...]
    """Of its epoch, level by level."""
    past: dict[str, Any]
    """What is to be known of the graphs before (``log.past``)."""
    spark: Mapping[str, bytes] = field(default_factory=dict)
    """Of Spark's checkpoint: what it planned last, and all that its sources have noted."""
    batch: Batch | None = None
    """The last one that its epoch has read."""

    @staticmethod
    def file_of(number: int) -> str:
        return f"{FOLDER}/{number:010d}"

    @property
    def file(self) -> str:
        return self.file_of(self.number)

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    @property
    def holds(self) -> tuple[str, ...]:
        """Files of the section that it needs."""
        return (*self.manifest.packs, *(ref.name for ref in self.commit.waiting_files))

    def to_bytes(self) -> bytes:
        said: dict[str, Any] = {"number": self.number, "created": self.created, "until": self.until, "past": self.past}
        said |= {"levels": len(self.prepares), "spark": list(self.spark)}
        said |= {"batch": asdict(self.batch)} if self.batch is not None else {}
        records = [self.job.to_bytes(), self.graph.to_bytes() if self.graph else b"", self.manifest.to_bytes()]
        records += [self.commit.to_bytes(), *(one.to_bytes() for one in self.prepares), *self.spark.values()]
        return packed(b"snap", said, records)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> SnapshotFile:
        said, (job, graph, manifest, commit, *rest) = unpacked(data, name, b"snap")
        levels = said["levels"]
        return cls(
            said["number"],
            said["created"],
            said["until"],
            JobFile.from_bytes(job, name),
            GraphFile.from_bytes(graph, name) if graph else None,
            Manifest.from_bytes(manifest, name),
            Commit.from_bytes(commit, name),
            tuple(Prepare.from_bytes(one, name) for one in rest[:levels]),
            said["past"],
            dict(zip(said["spark"], rest[levels:], strict=True)),
            Batch(**said["batch"]) if "batch" in said else _read_last(Commit.from_bytes(commit, name)),
        )


def _read_last(commit: Commit) -> Batch | None:
    """Up to format 3 the commit said it."""
    return None if commit.batch is None else replace(commit.batch, tick=0)


class Snapshots:
    """Those of one store. A file never changes, so each is read once; what only a fork needs is not kept of it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, SnapshotFile] = {}

    def numbers(self) -> list[int]:
        return [int(name) for name in self._store.list(FOLDER) if _RECORD.fullmatch(name)]

    def get(self, number: int) -> SnapshotFile | None:
        """All of it."""
        return read_record(self._store, SnapshotFile.file_of(number), SnapshotFile.from_bytes)

    def every(self, on_corrupt: Callable[[CorruptionError], None] | None = None) -> list[SnapshotFile]:
        """Without prepares and Spark's notes. One that cannot be read is an error, or told and left out."""
        before, found = self._known, dict[int, SnapshotFile]()  # somebody else may look at the same time
        for number in self.numbers():
            try:
                if number in before:
                    found[number] = before[number]
                elif (one := self.get(number)) is not None:
                    found[number] = replace(one, prepares=(), spark={})
            except CorruptionError as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)
        self._known = found
        return list(found.values())

    def held(self) -> frozenset[str] | None:
        """What they hold, in the section; None if that cannot be told."""
        try:
            return frozenset(name for one in self.every() for name in one.holds)
        except CorruptionError:
            return None

    def next(self) -> int:
        names = self._store.list(FOLDER)
        gone = [int(match[1]) for name in names if (match := _GONE.fullmatch(name))]
        return max([0, *(int(name) for name in names if _RECORD.fullmatch(name)), *gone]) + 1

    def put(self, snapshot: SnapshotFile) -> bool:
        """Whether the number is ours."""
        return self._store.put_if_absent(snapshot.file, snapshot.to_bytes())

    def forget(self, number: int) -> None:
        """Its packs go with the janitor's next round, if no checkpoint needs them."""
        if not self._store.exists(SnapshotFile.file_of(number)):
            raise no_snapshot(self._store, number, self.numbers())
        self._let_go(number)

    def expire(self, now: int) -> list[int]:
        """Those whose time is over at ``now`` (ms), which are then let go; and marks that are not needed any more."""
        over = [one.number for one in self.every(lambda _: None) if one.until is not None and one.until <= now]
        for number in over:
            self._let_go(number)
        last = self.next() - 1
        marks = [name for name in self._store.list(FOLDER) if (match := _GONE.fullmatch(name)) and int(match[1]) < last]
        self._store.delete(f"{FOLDER}/{name}" for name in marks)
        return over

    def _let_go(self, number: int) -> None:
        self._store.put_if_absent(f"{SnapshotFile.file_of(number)}.gone", b"")
        self._store.delete([SnapshotFile.file_of(number)])  # what is known of it goes when somebody looks again


def no_snapshot(store: Store, number: int, there: list[int]) -> StoreError:
    known = ", ".join(map(str, there)) or "none"
    return StoreError(
        f"The store {store.uri} has no snapshot {number}: it was never taken, or was let go.",
        safe="Nothing was changed.",
        todo=f"Those that it has: {known}.",
    )
