"""One node's duty in a recovery: its own pieces, merged with the streams of its branches, sent on (SR3 §3.4-3.6).

Pulled, never pushed: whoever waits for a branch sees it fail. A stream is one table of one branch, slice by slice; a
slice's rows leave in the order of slots, deltas collapsed, chunk by chunk while the branches below still send. Where
nobody merges them any more, the replacing node puts them in their places in whatever order they come: then a node sends
its pieces as they are. The last chunk says which pieces were in it and who below could not be reached.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.invariants import invariant
from holdfast.recovery.structures import Branch
from holdfast.ring.job import RingedJob
from holdfast.ring.messages import BranchPart, BranchTicket, Shape
from holdfast.ring.meters import Rate
from holdfast.safety.shards import PieceName, Version
from holdfast.state import copies
from holdfast.state.merging import chunks, loose, merged
from holdfast.state.table import Layout
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.messages import Address

AHEAD = 4
"""Chunks that wait at an inner node for each of its branches."""
OPEN_SECONDS = 10.0
"""A peer that is there begins its stream at once, whatever it has to wait for afterwards."""
Versions = Mapping[int, Version]


class Chunk(NamedTuple):
    """Some rows of a slice's table; perhaps none, if only the table's shape is to be told."""

    slice: int
    shape: Shape
    rows: pa.RecordBatch
    nbytes: int


@dataclass
class Outcome:
    """What came out of a branch once its stream is over."""

    pieces: set[PieceName] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)

    def add(self, other: Outcome) -> None:
        self.pieces |= other.pieces
        self.lost |= other.lost


def provide(ringed: RingedJob, ticket: BranchTicket) -> Iterator[tuple[pa.RecordBatch, BranchPart]]:
    """The answer to a pull, at the pace that this container may send."""
    branch, versions, table, outcome = ticket.branch, ticket.versions, ticket.table, Outcome()
    coming = stream(ringed, branch, versions, table, ticket.addresses, outcome, ticket.ordered)
    # Without branches the next chunk is there at once; else it may take its time, and this one does not wait for it.
    for chunk, last in _ending(coming, ahead=not branch.branches):
        part = BranchPart(chunk.slice, chunk.shape, chunk.nbytes) if chunk else BranchPart()
        if last:
            part = replace(part, last=True, pieces=tuple(sorted(outcome.pieces)), lost=tuple(sorted(outcome.lost)))
        nbytes = part.nbytes
        with ringed.meters.upload.under_way(nbytes):
            ringed.upload.take(nbytes, lambda: None)
            yield chunk.rows if chunk else _nothing(ringed.layout(table)), part
        if chunk:
            faults.place("container", "mid-branch", versions[chunk.slice].epoch)


def _ending(coming: Iterator[Chunk], ahead: bool) -> Iterator[tuple[Chunk | None, bool]]:
    """Each chunk, and whether it is the last; looking ahead, or by one more without rows in the end."""
    before: Chunk | None = None
    for chunk in coming:
        if not ahead:
            yield chunk, False
            continue
        if before:
            yield before, False
        before = chunk
    yield before, True


class Pull:
    """The other side: the chunks of one table of a branch at a peer, and then what was in them."""

    def __init__(
        self,
        ringed: RingedJob,
        client: Client,
        branch: Branch,
        versions: Versions,
        table: str,
        addresses: Mapping[str, str],
        ordered: bool = True,
    ) -> None:
        self.outcome = Outcome()
        self._ringed, self._client, self._at = ringed, client, branch.at
        self._ticket = BranchTicket(
            branch,
            {number: versions[number] for number in {piece.slice for piece in branch.all_pieces()}},
            table,
            ordered,
            {name: addresses[name] for one in branch.branches for name in one.nodes()},
            ringed.job.graph,
        )
        self._opened: Future[flight.FlightStreamReader] = Future()
        self._reader: flight.FlightStreamReader | None = None
        self._cancelled = False

    def chunks(self) -> Iterator[Chunk]:
        """Raises ``Unreachable`` if it breaks before its last one."""
        self._reader = reader = self._open()
        if self._cancelled:
            reader.cancel()
        coming, flow = self._client.read(self._ticket, reader), self._ringed.meters.download
        while True:
            with flow.under_way():
                part, rows = next(coming, (BranchPart(), None))
                self._ringed.download.take(part.nbytes, lambda: None)
                flow.moved(part.nbytes)
            if rows is None:
                raise Unreachable(f"{self._at}: its stream ended before its end")
            if part.slice is not None and part.shape is not None:
                yield Chunk(part.slice, part.shape, rows, part.nbytes)
            if part.last:
                self.outcome = Outcome(set(part.pieces), set(part.lost))
                return

    def _open(self) -> flight.FlightStreamReader:
        """A call that has no first answer yet cannot be cancelled: so it has a thread of its own, to be left behind."""
        self._ringed.crew.submit(self._begin)
        try:
            return self._opened.result(OPEN_SECONDS)
        except TimeoutError:
            self._opened.cancel()
            raise Unreachable(f"{self._at}: it began nothing for {OPEN_SECONDS:g} s") from None
        except CancelledError:
            raise Unreachable(f"{self._at}: given up") from None

    def _begin(self) -> None:
        try:
            reader = self._client.open(self._ticket)
        except Exception as error:
            with suppress(InvalidStateError):
                self._opened.set_exception(error)
            return
        try:
            self._opened.set_result(reader)
        except InvalidStateError:  # nobody waits for it any more
            reader.cancel()

    def cancel(self) -> None:
        """From any thread, also before it has begun, and once it is over."""
        self._cancelled = True
        self._opened.cancel()
        if self._reader is not None:
            self._reader.cancel()


def stream(
    ringed: RingedJob,
    branch: Branch,
    versions: Versions,
    table: str,
    addresses: Mapping[str, str],
    outcome: Outcome,
    ordered: bool = True,
) -> Iterator[Chunk]:
    """One table of a branch that begins here: slices in order, each one's rows in the order of slots if ``ordered``."""
    below = [_Below(ringed, one, versions, table, addresses) for one in branch.branches]
    try:
        for number in sorted({piece.slice for piece in branch.all_pieces()}):
            own = [piece for piece in branch.pieces if piece.slice == number]
            yield from _slice(ringed, number, own, versions[number], table, below, outcome, ordered)
        for one in below:
            outcome.add(one.finish())
    finally:
        for one in below:
            one.close()


def _slice(
    ringed: RingedJob,
    number: int,
    own: Sequence[PieceName],
    version: Version,
    table: str,
    below: Sequence[_Below],
    outcome: Outcome,
    ordered: bool,
) -> Iterator[Chunk]:
    shape: Shape | None = None
    mine: list[pa.RecordBatch] = []
    for piece in own:
        found = ringed.pieces.rows(piece, version, table)
        if found is not None:
            outcome.pieces.add(piece)
            for whole, rows in found:
                shape = whole
                mine.append(rows)
    for one in below:
        shape = one.shape(number) or shape
    if shape is None:
        return
    told = False
    if ordered:
        streams = [*map(chunks, mine), *(one.rows(number) for one in below)]
        coming = _measured(merged(streams), ringed.layout(table))
        if below:
            coming = _metered(coming, ringed.meters.merge)
    else:
        invariant(not below, "what comes from below is in order")
        coming = _measured(loose(mine), ringed.layout(table))
    for rows, nbytes in coming:
        yield Chunk(number, shape, rows, nbytes)
        told = True
    if not told:
        yield Chunk(number, shape, _nothing(ringed.layout(table)), 0)


def _measured(coming: Iterator[pa.RecordBatch], layout: Layout) -> Iterator[tuple[pa.RecordBatch, int]]:
    width = copies.width(layout)
    for rows in coming:
        yield rows, rows.num_rows * width if width else int(rows.nbytes)


def _metered(coming: Iterator[tuple[pa.RecordBatch, int]], rate: Rate) -> Iterator[tuple[pa.RecordBatch, int]]:
    began = time.thread_time()
    for rows, nbytes in coming:
        rate.note(nbytes, time.thread_time() - began)
        yield rows, nbytes
        began = time.thread_time()


@lru_cache
def _nothing(layout: Layout) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], copies.schema(layout))


class _Below:
    """A branch at another node, read ahead by a few chunks, handed on one slice at a time.

    When it breaks it has no more rows, and names who was lost. Rows of it that have gone on by then are right, but its
    pieces do not count as whole.
    """

    def __init__(
        self, ringed: RingedJob, branch: Branch, versions: Versions, table: str, addresses: Mapping[str, str]
    ) -> None:
        self._branch = branch
        self._outcome = Outcome()
        client = ringed.client(Address(branch.at, addresses[branch.at]))
        self._pull = Pull(ringed, client, branch, versions, table, addresses)
        self._ahead: queue.Queue[Chunk | None] = queue.Queue(AHEAD)
        self._next: Chunk | None = None
        self._begun = self._over = False
        self._done = ringed.crew.submit(self._read)

    def _read(self) -> None:
        try:
            for chunk in self._pull.chunks():
                self._put(chunk)
            self._outcome.add(self._pull.outcome)
        except (Unreachable, HoldfastError):
            self._outcome.lost.add(self._branch.at)
        finally:
            self._put(None)

    def shape(self, number: int) -> Shape | None:
        chunk = self._peek()
        return chunk.shape if chunk is not None and chunk.slice == number else None

    def rows(self, number: int) -> Iterator[pa.RecordBatch]:
        while (chunk := self._peek()) is not None and chunk.slice == number:
            self._begun = False
            yield chunk.rows

    def finish(self) -> Outcome:
        while self._peek() is not None:
            self._begun = False
        self._done.result()
        return self._outcome

    def close(self) -> None:
        self._over = True
        self._pull.cancel()
        wait([self._done])

    def _peek(self) -> Chunk | None:
        if not self._begun:
            self._next, self._begun = self._ahead.get(), True
        return self._next

    def _put(self, chunk: Chunk | None) -> None:
        while not self._over:
            with suppress(queue.Full):
                return self._ahead.put(chunk, timeout=0.1)
        return None
