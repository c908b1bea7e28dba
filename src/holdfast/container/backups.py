"""Backups of slices whose owner is elsewhere (ChronoStream III-B: replication buffering, background merging).

A slice's copy is all its stages together. Parts are kept as they come; when the last part of the last stage is there,
the copy is sealed and the backup has its version, at once and whole. A stream that tears, or is overtaken by a newer
one, leaves the backup as it was. Sealed deltas cost nothing until they are merged: by one thread, some at a time, or
by whoever needs the backup now. Merging on arrival was refused: the owner's peers would pay for every delta in the
middle of their own epochs, and a delta that is overtaken by a full copy would have been merged for nothing.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.container.priority import step_back
from holdfast.container.slices import table_name
from holdfast.errors import CorruptionError, EpochGone
from holdfast.invariants import invariant
from holdfast.operators.spec import Operator
from holdfast.state import copies
from holdfast.state.slice import read_copy
from holdfast.state.table import Layout

MERGE_EVERY = 4
MOST_SEALED = 16
"""More deltas than that, and whoever brings the next one merges them first: its sender waits so long."""
STALE_SECONDS = 10.0
Loaders = dict[str, copies.Loader]
Parts = dict[str, list[tuple[copies.Header, copies.Picked]]]


def _layouts(operators: Mapping[str, Operator]) -> dict[str, Layout]:
    return {
        table_name(stage, at): layout
        for stage, operator in operators.items()
        for at, layout in enumerate(operator.layouts)
    }


def _size(copy: Parts) -> int:
    return sum(int(part.nbytes) for parts in copy.values() for _, part in parts)


def _whole(copy: Parts) -> bool:
    """Whether it goes on from nothing: then tables that it does not have are empty, else they are as they were."""
    return all(parts[0][0].base == 0 for parts in copy.values())


@dataclass
class Incoming:
    """A slice's copy on its way here."""

    copy: str
    epoch: int
    tables: int = 0
    parts: Parts = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    touched: float = field(default_factory=time.monotonic)

    def continues(self, base: int | None) -> bool:
        """Whether it goes on from the version we have, or from nothing."""
        return _whole(self.parts) or all(parts[0][0].base == base for parts in self.parts.values())


@dataclass
class Backup:
    """Tables without an index, and the sealed copies that are not in them yet. A table that is not there is empty.
    ``lock`` is for the tables."""

    version: int
    loaders: Loaders
    sealed: list[tuple[int, Parts]] = field(default_factory=list)  # with the epoch that each leads to
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        return sum(_size(parts) for _, parts in self.sealed) + sum(loader.nbytes for loader in self.loaders.values())


class Backups:
    """All backups of one job on this container."""

    def __init__(
        self,
        operators: Mapping[str, Operator],
        merge_every: int = MERGE_EVERY,
        most_sealed: int = MOST_SEALED,
        floor: int = 0,
    ) -> None:
        self._operators, self._layouts = operators, _layouts(operators)
        self._floor = floor
        self._merge_every, self._most_sealed = merge_every, most_sealed
        self._lock = threading.Condition()  # for what is held and what is on its way; never while tables are merged
        self._held: dict[int, Backup] = {}
        self._incoming: dict[int, Incoming] = {}
        self._to_merge: deque[int] = deque()
        self._merger: threading.Thread | None = None
        self._closed = False

    def adopt(self, operators: Mapping[str, Operator], floor: int = 0) -> None:
        """The job has these stages now. A table that a backup does not have is empty so far; one that is gone goes the
        next time it is merged. Below ``floor`` none can be brought on by these stages alone."""
        with self._lock:
            self._operators, self._layouts, self._floor = operators, _layouts(operators), floor
            for number in [number for number, backup in self._held.items() if backup.version < floor]:
                del self._held[number]
            self._discard([number for number, incoming in self._incoming.items() if incoming.epoch < floor])

    # --- what comes in ------------------------------------------------------------------------------------

    def opened(self, table: str, message: pa.RecordBatch) -> copies.Picked | None:
        """The rows of a message, of many slices perhaps; None of a stage that is gone."""
        layout = self._layouts.get(table)
        if layout is None:
            return None
        rows = copies.decode(message, layout)
        if rows is None:
            raise CorruptionError(
                f"A copy of slices of '{table}' has other columns than that table.",
                safe="The backups are as they were.",
                todo="Start all containers with the same version of Holdfast.",
            )
        return rows

    def receive(
        self,
        copy: str,
        table: str,
        number: int,
        header: copies.Header,
        part: pa.RecordBatch | copies.Picked,
        tables: int | None = None,
    ) -> bool:
        """One part of one slice, whose copy has so many ``tables``: all of them, or those that changed since the
        version here. False if it does not go on from what is here: the sender sees that by ``versions``."""
        rows = self.opened(table, part) if isinstance(part, pa.RecordBatch) else part
        if rows is None:
            return False
        with self._lock:
            incoming = self._current(copy, number, header) if header.epoch >= self._floor else None
            if incoming is None:
                return False
            incoming.tables = len(self._layouts) if tables is None else tables
            if not self._add(incoming, table, number, header, rows):
                del self._incoming[number]
                return False
            backup = self._held.get(number)
            crowded = backup is not None and len(backup.sealed) > self._most_sealed
        if backup is not None and crowded:
            with backup.lock:
                self._merge(number, backup)
        return True

    def end(self, copy: str, table: str) -> None:
        """A stream is over, well or not: what it left incomplete will not be completed."""
        with self._lock:
            torn = [
                number
                for number, incoming in self._incoming.items()
                if incoming.copy == copy and table in incoming.parts and table not in incoming.complete
            ]
            self._discard(torn)

    def _current(self, copy: str, number: int, header: copies.Header) -> Incoming | None:
        """Where the part belongs. A newer epoch overtakes an older one, never the other way round."""
        incoming = self._incoming.get(number)
        if incoming is not None and incoming.copy == copy:
            return incoming
        stale = time.monotonic() - STALE_SECONDS
        self._discard([old for old, other in self._incoming.items() if other.touched < stale])
        incoming = self._incoming.get(number)
        if header.start or (incoming is not None and incoming.epoch >= header.epoch):
            return None
        fresh = self._incoming[number] = Incoming(copy, header.epoch)
        return fresh

    def _add(self, incoming: Incoming, table: str, number: int, header: copies.Header, part: copies.Picked) -> bool:
        backup = self._held.get(number)
        version = None if backup is None else backup.version
        parts = incoming.parts.setdefault(table, [])
        follows = header.continues(parts[-1][0]) if parts else header.start == 0 and header.epoch == incoming.epoch
        parts.append((header, part))
        if not follows or not incoming.continues(version) or (version is not None and version >= header.epoch):
            return False
        incoming.touched = time.monotonic()
        if header.last:
            incoming.complete.add(table)
            if len(incoming.complete) == incoming.tables:
                self._seal(number, incoming)
        return True

    def _seal(self, number: int, incoming: Incoming) -> None:
        del self._incoming[number]
        backup = self._held.get(number)
        if backup is None:
            backup = self._held[number] = Backup(incoming.epoch, {})
        full = _whole(incoming.parts)
        if full:
            backup.sealed.clear()
        backup.sealed.append((incoming.epoch, incoming.parts))
        backup.version = incoming.epoch
        # A full copy is merged at once: it is where an activation would spend its time.
        if (full or len(backup.sealed) >= self._merge_every) and number not in self._to_merge:
            self._to_merge.append(number)
            self._start_merger()

    def _discard(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._incoming.pop(number, None)

    # --- what is here -------------------------------------------------------------------------------------

    def versions(self, slices: Iterable[int]) -> dict[int, int]:
        """The epochs of those slices' backups; a slice without one is not in it."""
        with self._lock:
            return {number: self._held[number].version for number in slices if number in self._held}

    def read(self, stage: str, number: int, keys: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
        """The rows of those keys that exist, and the epoch they are of."""
        with self._lock:
            backup = self._held.get(number)
        if backup is None:
            raise EpochGone(f"Slice {number} has no backup here.", todo="Ask the master again.")
        operator = self._operators.get(stage)
        if operator is None:
            raise EpochGone(f"There is no stage '{stage}' here, or not yet.", todo="Ask the master again.")
        with backup.lock:
            version = self._merge(number, backup)
            loader = backup.loaders.get(stage) or copies.Loader(self._layouts[stage])
            return version, read_copy(operator, loader, operator.decode_keys(keys))

    def take(self, number: int) -> tuple[int, Loaders] | None:
        """The backup, merged, and no longer held here."""
        with self._lock:
            backup = self._held.pop(number, None)
            self._discard([number])
        if backup is None:
            return None
        with backup.lock:
            return self._merge(number, backup), backup.loaders

    def put(self, number: int, version: int, loaders: Loaders) -> None:
        """What was an active slice is a backup now, unless a newer one came meanwhile."""
        with self._lock:
            known = self._held.get(number)
            if version >= self._floor and (known is None or known.version <= version):
                self._held[number] = Backup(version, loaders)

    def drop(self, slices: Iterable[int]) -> None:
        with self._lock:
            for number in slices:
                self._held.pop(number, None)
                self._discard([number])

    @property
    def count(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Of all that is held, with what is still on its way."""
        with self._lock:
            arriving = sum(_size(incoming.parts) for incoming in self._incoming.values())
            return arriving + sum(backup.nbytes for backup in self._held.values())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._merger is not None:
            self._merger.join()

    # --- merging ------------------------------------------------------------------------------------------

    def _merge(self, number: int, backup: Backup) -> int:
        """Bring the tables to the newest version. Under the backup's lock."""
        with self._lock:
            waiting, backup.sealed = backup.sealed, []
            version = backup.version
            layouts = self._layouts
        try:
            loaders = backup.loaders
            for gone in [table for table in loaders if table not in layouts]:
                del loaders[gone]
            for epoch, copy in waiting:
                if _whole(copy):
                    loaders.clear()
                for table in copy:
                    if table in layouts and table not in loaders:  # it was empty until then
                        loaders[table] = copies.Loader(layouts[table], epoch=min(epoch, copy[table][0][0].base))
                for table, loader in loaders.items():
                    for header, part in copy.get(table, ()):
                        loader.add(part, header)
                    loader.epoch = epoch  # also of one that is as it was
        except BaseException:
            with self._lock:  # half merged it is of no epoch: better none than that
                if self._held.get(number) is backup:
                    del self._held[number]
            raise
        invariant(all(loader.epoch == version for loader in backup.loaders.values()), "a merged backup is of one epoch")
        return version

    def _start_merger(self) -> None:
        if self._merger is None:
            self._merger = threading.Thread(target=self._keep_merging, daemon=True, name="holdfast-merge")
            self._merger.start()
        self._lock.notify_all()

    def _keep_merging(self) -> None:
        step_back()
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._to_merge or self._closed)
                if self._closed:
                    return
                number = self._to_merge.popleft()
                backup = self._held.get(number)
            if backup is None:
                continue
            try:
                with backup.lock:
                    self._merge(number, backup)
            except Exception:
                traceback.print_exc(file=sys.stderr)  # its owner will see that the version is gone, and send it anew
