"""Spark's own checkpoint, kept as durably as ours.

Spark renames its files into place and syncs none. So every block carries those of its batch (``carry``): what it
planned, and what its sources have noted since the block before. What is too large for that (a list of many files, a
compact file, which replaces the lists before it) is synced first. Where sinks have rows of a batch before its block is
there, the note of that carries them first. At a start what a power cut took is written again (``mend``), before Spark
looks at it. And before blocks are deleted, what they carry is synced (``settle``), so that a note from long ago is
never only in a file that has gone. (Up to format 3 prepares carried all this.)

All of this is for local disks. Elsewhere a file that was closed is whole and durable by itself, as far as the location
promises anything; there blocks carry only what is read anyway.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator

from holdfast.errors import CorruptionError
from holdfast.invariants import some
from holdfast.log import repair as mending
from holdfast.log.blocks import Begun, Block, standing
from holdfast.log.files import TEMPORARY, sync_files
from holdfast.log.ledger import Ledger
from holdfast.log.records import Batch, Carried, Fence, Prepare

CARRIED_BYTES = 64 << 10
"""A larger file is synced instead."""

Signature = tuple[int, int, int]


class SparkNotes:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._section = ledger.section
        self._metadata = b""
        self._offsets: tuple[int, bytes] = (-1, b"")
        self._safe: dict[str, Signature] = {}  # notes of sources that are synced, or in a prepare
        self._before: dict[str, Signature] = {}  # the same, without what was carried last
        self._synced: dict[str, Signature] = {}
        self._lock = threading.Lock()

    # --- what a batch is ----------------------------------------------------------------------------------

    def metadata(self) -> bytes:
        self._metadata = self._metadata or self._section.read(f"{self._ledger.spark}/{mending.METADATA}")
        return self._metadata

    def offsets(self, batch_id: int) -> bytes:
        if self._offsets[0] != batch_id:
            self._offsets = batch_id, self._section.read(f"{self._ledger.spark}/offsets/{batch_id}")
        return self._offsets[1]

    def carry(self, batch: Batch) -> tuple[Carried, list[bytes]]:
        """What the block of a batch carries of Spark's files, numbered from 0. When it returns, everything else that
        Spark needs to offer the batch again is synced."""
        with self._lock:
            found = self._sources() if self._section.is_local else {}
            names = mending.current(found)
            files = {mending.METADATA: self.metadata(), f"offsets/{batch.batch_id}": self.offsets(batch.batch_id)}
            new = {name for name in names if self._safe.get(name) != found[name]}
            large = {name for name in new if name.endswith(".compact") or found[name][1] > CARRIED_BYTES}
            self._sync(large)
            files |= {name: self._section.read(f"{self._ledger.spark}/{name}") for name in sorted(new - large)}
            self._before, self._safe = self._safe, {name: found[name] for name in names}
            carried = Carried(self._ledger.spark, tuple(sorted(names)), {name: at for at, name in enumerate(files)})
            return carried, list(files.values())

    def not_stored(self) -> None:
        """The block for which was carried last is not in the store: what was new in it is safe nowhere."""
        with self._lock:
            self._safe = self._before

    # --- after a power cut --------------------------------------------------------------------------------

    def mend(self) -> mending.Mending | None:
        """For the owner of the job, before Spark starts: make the checkpoint whole up to the newest block."""
        if not self._section.is_local:
            return None
        newest = next(self._carriers(), None)
        done = None
        if newest is None or newest.spark is not None:  # else it is of a Holdfast that carried nothing
            disk = self._disk()
            standing = self._standing(disk)
            done = mending.mend(standing, disk, self._carried(mending.wanting(standing, disk)))
            self._perform(done)
        self.settle()
        return done

    def begin_blocks(self, incarnation: int) -> None:
        """A store of before has its last batch as a block from now on: an epoch without rows, which may come before
        the next batch, does not say what that was. Behind ``mend``: whatever counts of it is synced."""
        there = standing(self._ledger)
        if there.newest is not None or there.batch is None or there.former is not None:
            return
        names = mending.current(self._sources()) if self._section.is_local else frozenset()
        carried = Carried(self._ledger.spark, tuple(sorted(names)), {})
        commit = some(self._ledger.last_committed(), "somebody has said what the last batch was")
        sinks = commit.sinks
        if sinks is None:
            sinks = some(self._ledger.get_prepare(commit.fence.epoch, 1), "what is committed was prepared").sinks
        fence = Fence(incarnation, there.last, 0)
        self._ledger.put_block(Block(fence, there.batch, sinks=sinks, spark=carried))

    def _carriers(self) -> Iterator[Begun | Block | Prepare]:
        """What says what was in Spark's files, the newest first."""
        begun = standing(self._ledger).begun
        if begun is not None:
            yield begun
        yield from self._ledger.carriers()

    def _standing(self, disk: mending.Files) -> mending.Standing:
        there, newest = standing(self._ledger), next(self._carriers(), None)
        committed = there.batch.batch_id if there.batch is not None else -1
        if newest is None or newest.spark is None:
            return mending.Standing(committed, -1)
        names = frozenset(newest.spark.names)
        if newest.spark.folder != self._ledger.spark:  # the graph has changed since, and what it wrote is whole
            known = mending.current(name for name in disk if _is_note(name))
            names = frozenset(known - mending.wanting(mending.Standing(committed, committed, known), disk))
        planned = newest.batch.batch_id if newest.batch is not None else committed
        return mending.Standing(committed, max(committed, planned), names)

    def _carried(self, wanted: Iterable[str]) -> dict[str, bytes]:
        """What blocks say of these files, the newest first."""
        left, found = set(wanted), dict[str, bytes]()
        carriers = self._carriers()
        while left and (one := next(carriers, None)) is not None:
            if one.spark is not None and one.spark.folder == self._ledger.spark:
                found |= {name: content for name, content in one.carried().items() if name in left}
                left -= found.keys()
        return found

    def _perform(self, done: mending.Mending) -> None:
        folder = self._ledger.spark
        if done.missing:
            raise CorruptionError(
                f"Spark's own checkpoint {self._section.uri}/{folder} has lost {', '.join(done.missing[:3])}, and no "
                "block has it.",
                safe="Nothing was changed. The state and every committed epoch are whole.",
                todo="Bring the file back from a copy of the store.",
            )
        touched = [*done.drop, *done.write]
        self._section.delete(f"{folder}/{name}" for name in map(mending.checksum_name, touched))
        self._section.delete(f"{folder}/{name}" for name in touched)
        for name, content in done.write.items():
            self._section.write(f"{folder}/{name}", [content])
            self._section.write(f"{folder}/{mending.checksum_name(name)}", [mending.checksums(content)])

    # --- making it safe -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Sync what Spark would need if no block carried anything: its id, the last offsets, the sources' notes."""
        if not self._section.is_local:
            return
        with self._lock:
            found = self._sources()
            names = mending.current(found)
            self._sync(names)
            self._safe |= {name: found[name] for name in names}
            numbers = sorted(
                int(name) for name in self._section.list(f"{self._ledger.spark}/offsets") if name.isdigit()
            )
            self._sync([f"offsets/{number}" for number in numbers[-3:]])
            self._sync([mending.METADATA])

    def _sync(self, names: Iterable[str]) -> None:
        root = self._root
        paths = [f"{root}/{one}" for name in names for one in (name, mending.checksum_name(name))]
        unsynced = {path: sign for path in paths if (sign := _signature(path)) and self._synced.get(path) != sign}
        if unsynced:
            sync_files(unsynced, self._section.uri)
            self._synced |= unsynced
        if len(self._synced) > 1000:
            self._synced = {path: sign for path, sign in self._synced.items() if os.path.exists(path)}

    @property
    def _root(self) -> str:
        return f"{self._section.uri}/{self._ledger.spark}"

    def _sources(self) -> dict[str, Signature]:
        """The notes of all sources."""
        found: dict[str, Signature] = {}
        for folder, _, names in os.walk(f"{self._root}/sources"):
            within = os.path.relpath(folder, self._root)
            for name in names:
                if not name.startswith(".") and (sign := _signature(f"{folder}/{name}")):
                    found[f"{within}/{name}"] = sign
        return found

    def _disk(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for folder, _, names in os.walk(self._root):
            for name in names:
                if not name.endswith((TEMPORARY, f"{TEMPORARY}.crc")):
                    path = f"{folder}/{name}"
                    # A driver that does not know yet that it was replaced may still tidy up here.
                    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                        found[os.path.relpath(path, self._root)] = file.read()
        return found


def _is_note(name: str) -> bool:
    return name.startswith(mending.SOURCES) and not name.rpartition("/")[2].startswith(".")


def _signature(path: str) -> Signature | None:
    """What changes when somebody writes a file anew; None if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
