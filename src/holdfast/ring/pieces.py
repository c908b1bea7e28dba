"""Pieces of slices whose owners are elsewhere, in memory (SR3 §3.3).

A version of a piece is its rows of all tables at one epoch: full, or only those changed since the version before. It
counts from the moment when every part of every table has come, from the first to the last and of one saving: parts are
numbered, and a version that lost one on its way is given up as a whole. The owner says with each version which one
it knows to be usable everywhere (``settled``); that one and the new one are kept, everything older is folded into it.
So a saving that fails half way, here or elsewhere, never costs the version that can still be completed.

Stages come and go while a job runs, so each saving says how many tables it has. A version without a table is of an
epoch in which the stage was not there yet, or not any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import CorruptionError
from holdfast.ring.messages import PiecePart, Shape
from holdfast.safety.shards import Held, PieceName, Version
from holdfast.state import copies
from holdfast.state.merging import collapsed
from holdfast.state.table import Layout

FOLD_EVERY = 4
STALE_SECONDS = 60.0


@dataclass
class Content:
    """A piece's rows of one table, in the order of slots; all of them if ``full``. Once sealed: one part, or none."""

    shape: Shape
    full: bool
    schema: pa.Schema
    parts: list[pa.RecordBatch] = field(default_factory=list)
    came: int = 0
    """How many parts have come; some have no rows."""
    last: bool = False
    nbytes: int = 0
    """Counted as they come: to ask Arrow takes longer than everything else that an answer needs."""

    def add(self, number: int, rows: pa.RecordBatch, last: bool) -> bool:
        """False if it is not the next one."""
        if self.last or number != self.came:
            return False
        self.came += 1
        self.last = last
        if rows.num_rows:
            self.parts.append(rows)
            self.nbytes += int(rows.nbytes)
        return True


@dataclass
class Layer:
    """What one saving brought of a piece: by table."""

    version: Version
    base: Version | None
    tables: dict[str, Content] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return all(content.full for content in self.tables.values())

    @property
    def nbytes(self) -> int:
        return sum(content.nbytes for content in self.tables.values())


@dataclass
class Incoming:
    """A version on its way here. ``saving`` names whoever sends it."""

    saving: str
    owner: str
    settled: Version | None
    layer: Layer
    overtaken: frozenset[str] = frozenset()
    """Savings that this one came after: none of them comes back."""
    touched: float = field(default_factory=time.monotonic)


@dataclass
class Piece:
    """The first layer is full; the last one, or the one before, is the settled version."""

    owner: str
    layers: list[Layer]

    @property
    def versions(self) -> list[Version]:
        """The two newest: what is older is only there as part of them."""
        return [layer.version for layer in self.layers[-2:]]


class Pieces:
    """All pieces of one job on this container."""

    def __init__(self, layout: Callable[[str], Layout | None]) -> None:
        """``layout``: of a table that the job has here by now."""
        self._layout = layout
        self._lock = threading.Lock()
        self._held: dict[PieceName, Piece] = {}
        self._incoming: dict[PieceName, Incoming] = {}

    # --- what comes in ------------------------------------------------------------------------------------

    def receive(self, saving: str, owner: str, table: str, tables: int, part: PiecePart, rows: pa.RecordBatch) -> None:
        """One part of one table of a piece, which has so many ``tables``. What does not fit is left out; the owner asks
        what is here afterwards."""
        layout = self._layout(table)  # what the job has no more is of no use, but part of the version
        if layout is not None and not rows.schema.equals(copies.schema(layout)):
            raise CorruptionError(
                f"A piece of '{table}' has other columns than that table.",
                safe="The pieces that are here are as they were.",
                todo="Start all containers with the same version of Holdfast.",
            )
        name = part.piece
        with self._lock:
            incoming = self._current(saving, owner, part)
            if incoming is None:
                return
            incoming.touched = time.monotonic()
            came = incoming.layer.tables
            content = came.setdefault(table, Content(part.shape, part.full, rows.schema))
            if not content.add(part.number, rows, part.last):
                del self._incoming[name]
            elif len(came) == tables and all(one.last for one in came.values()):
                del self._incoming[name]
                self._seal(name, incoming)

    def _current(self, saving: str, owner: str, part: PiecePart) -> Incoming | None:
        """Where the part belongs. Only the first one of a table begins anything, and no older version overtakes."""
        incoming = self._incoming.get(part.piece)
        if incoming is not None and incoming.saving == saving:
            return incoming
        if part.number != 0:
            return None  # what came before it has been given up
        overtaken: frozenset[str] = frozenset()
        if incoming is not None:
            if incoming.layer.version > part.version or saving in incoming.overtaken:
                return None
            overtaken = incoming.overtaken | {incoming.saving}
        fresh = Incoming(saving, owner, part.settled, Layer(part.version, part.base), overtaken)
        self._incoming[part.piece] = fresh
        return fresh

    def end(self, saving: str, table: str) -> None:
        """A stream is over, well or not: what it left incomplete will not be completed."""
        stale = time.monotonic() - STALE_SECONDS
        with self._lock:
            for name, incoming in list(self._incoming.items()):
                content = incoming.layer.tables.get(table)
                torn = incoming.saving == saving and (content is None or not content.last)
                if torn or incoming.touched < stale:
                    del self._incoming[name]

    def _seal(self, name: PieceName, incoming: Incoming) -> None:
        layer, settled = incoming.layer, incoming.settled
        piece = self._held.get(name)
        layers = [] if piece is None else piece.layers
        if layers and layers[-1].version >= layer.version:
            return  # here already, or newer
        before = [one for one in layers if settled is not None and one.version <= settled]
        if not before or before[-1].version != settled:
            before = []
        if not layer.full and (not before or layer.base != settled):
            return  # it does not go on from what is here
        if len(before) > FOLD_EVERY:
            before = [_folded(before)]
        for content in layer.tables.values():
            if len(content.parts) > 1:
                content.parts = [pa.concat_batches(content.parts)]
        self._held[name] = Piece(incoming.owner, [*before, layer])

    # --- what is here -------------------------------------------------------------------------------------

    def inventory(self, slices: Collection[int]) -> list[Held]:
        with self._lock:
            return [
                Held(name, version, sum(layer.nbytes for layer in piece.layers))
                for name, piece in self._held.items()
                if name.slice in slices
                for version in piece.versions
            ]

    def owned_by(self, owners: Collection[str]) -> set[int]:
        """The slices whose newest pieces here came from those containers."""
        newest: dict[int, tuple[Version, str]] = {}
        with self._lock:
            for name, piece in self._held.items():
                here = (piece.versions[-1], piece.owner)
                newest[name.slice] = max(here, newest.get(name.slice, here))
        return {slice_ for slice_, (_, owner) in newest.items() if owner in owners}

    def rows(self, name: PieceName, version: Version, table: str) -> list[tuple[Shape, pa.RecordBatch]] | None:
        """The piece's rows of a table at that version, deltas collapsed, unless it has no such table; None if it is not
        here (any more)."""
        with self._lock:
            piece = self._held.get(name)
            if piece is None or version not in piece.versions:
                return None
            layers = [layer.tables for layer in piece.layers if layer.version <= version]
        if table not in layers[-1]:
            return []
        contents = [tables[table] for tables in layers if table in tables]
        return [(contents[-1].shape, _collapsed(contents))]

    def drop(self, slices: Iterable[int], version: Version, kept: Collection[PieceName] = ()) -> None:
        """Pieces of these slices that this container shall not hold any more; never one newer than ``version``."""
        numbers = set(slices)
        with self._lock:
            for name in [name for name in self._held if name.slice in numbers and name not in kept]:
                if self._held[name].versions[-1] <= version:
                    del self._held[name]
            for name in [name for name in self._incoming if name.slice in numbers and name not in kept]:
                if self._incoming[name].layer.version <= version:
                    del self._incoming[name]

    @property
    def count(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        with self._lock:
            layers = [layer for piece in self._held.values() for layer in piece.layers]
            layers += [incoming.layer for incoming in self._incoming.values()]
            return sum(layer.nbytes for layer in layers)


def _collapsed(contents: list[Content]) -> pa.RecordBatch:
    parts = _parts(contents)
    return collapsed(parts) if parts else pa.RecordBatch.from_pylist([], contents[-1].schema)


def _parts(contents: list[Content]) -> list[pa.RecordBatch]:
    """From the last full one on, oldest first; a table that came later had nothing before."""
    first = max((at for at, content in enumerate(contents) if content.full), default=0)
    return [part for content in contents[first:] for part in content.parts]


def _folded(layers: list[Layer]) -> Layer:
    """One full layer with what all of them come to."""
    last = layers[-1]
    folded = Layer(last.version, None)
    for table, content in last.tables.items():
        parts = _parts([layer.tables[table] for layer in layers if table in layer.tables])
        rows = [collapsed(parts)] if parts else []
        nbytes = sum(int(one.nbytes) for one in rows)
        folded.tables[table] = Content(content.shape, True, content.schema, rows, last=True, nbytes=nbytes)
    return folded
