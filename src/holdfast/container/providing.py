"""One node's duty in a recovery: its own pieces, merged with the streams of its branches, sent on (SR3 §3.4-3.6).

Pulled, never pushed: whoever waits for a branch sees it fail. A stream is one table of one branch, slice by slice; a
slice's rows leave in the order of slots, deltas collapsed, chunk by chunk while the branches below still send. Its last
chunk says which pieces were in it and who below could not be reached.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from holdfast import faults
from holdfast.container import wire
from holdfast.container.client import Address, Client, Unreachable
from holdfast.container.pieces import Shape
from holdfast.container.ringed import RingedJob
from holdfast.errors import HoldfastError
from holdfast.recovery.plans import Branch
from holdfast.safety.shards import PieceName, Version
from holdfast.state import copies
from holdfast.state.merging import chunks, merged

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


@dataclass
class Outcome:
    """What came out of a branch once its stream is over."""

    pieces: set[PieceName] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)

    def add(self, other: Outcome) -> None:
        self.pieces |= other.pieces
        self.lost |= other.lost


def to_plain(branch: Branch) -> dict[str, Any]:
    below = [to_plain(one) for one in branch.branches]
    return {"at": branch.at, "pieces": [list(piece) for piece in branch.pieces], "branches": below}


def branch_of(plain: Mapping[str, Any]) -> Branch:
    below = tuple(branch_of(one) for one in plain["branches"])
    return Branch(plain["at"], tuple(PieceName(*piece) for piece in plain["pieces"]), below)


def provide(ringed: RingedJob, header: Mapping[str, Any]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """The answer to a pull, as Flight wants it, at the pace that this container may send."""
    versions = {int(number): Version(*version) for number, version in header["versions"].items()}
    outcome = Outcome()
    for chunk in stream(ringed, branch_of(header["branch"]), versions, header["table"], header["addresses"], outcome):
        ringed.upload.take(chunk.rows.nbytes, lambda: None)
        about = {"slice": chunk.slice, "rows": chunk.shape.rows, "purged_at": chunk.shape.purged_at}
        yield chunk.rows, wire.pack(about)
        faults.place("container", "mid-branch", versions[chunk.slice].epoch)
    empty = pa.RecordBatch.from_pylist([], copies.schema(ringed.layouts[header["table"]]))
    done = {"pieces": [list(piece) for piece in sorted(outcome.pieces)], "lost": sorted(outcome.lost)}
    yield empty, wire.pack(done)


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
    ) -> None:
        self.outcome = Outcome()
        self._ringed, self._client, self._at = ringed, client, branch.at
        self._ticket = {
            **ringed.header,
            "kind": "branch",
            "branch": to_plain(branch),
            "versions": {number: list(versions[number]) for number in {piece.slice for piece in branch.all_pieces()}},
            "table": table,
            "addresses": {name: addresses[name] for one in branch.branches for name in one.nodes()},
        }
        self._opened: Future[flight.FlightStreamReader] = Future()
        self._reader: flight.FlightStreamReader | None = None
        self._cancelled = False

    def chunks(self) -> Iterator[Chunk]:
        """Raises ``Unreachable`` if it breaks before its last one."""
        self._reader = reader = self._open()
        if self._cancelled:
            reader.cancel()
        for about, rows in self._client.read(reader):
            if "pieces" in about:
                self.outcome = Outcome({PieceName(*piece) for piece in about["pieces"]}, set(about["lost"]))
                return
            self._ringed.download.take(rows.nbytes, lambda: None)
            yield Chunk(about["slice"], Shape(about["rows"], about["purged_at"]), rows)
        raise Unreachable(f"{self._at}: its stream ended before its end")

    def _open(self) -> flight.FlightStreamReader:
        """A call that has no first answer yet cannot be cancelled: so it has a thread of its own, to be left behind."""
        threading.Thread(target=self._begin, daemon=True, name=f"holdfast-open-{self._at}").start()
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
) -> Iterator[Chunk]:
    """One table of a branch that begins here: slices in order, each one's rows in the order of slots."""
    below = [_Below(ringed, one, versions, table, addresses) for one in branch.branches]
    try:
        for number in sorted({piece.slice for piece in branch.all_pieces()}):
            own = [piece for piece in branch.pieces if piece.slice == number]
            yield from _slice(ringed, number, own, versions[number], table, below, outcome)
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
) -> Iterator[Chunk]:
    shape: Shape | None = None
    streams: list[Iterator[pa.RecordBatch]] = []
    for piece in own:
        found = ringed.pieces.rows(piece, version, table)
        if found is not None:
            shape, rows = found
            streams.append(chunks(rows))
            outcome.pieces.add(piece)
    for one in below:
        shape = one.shape(number) or shape
        streams.append(one.rows(number))
    if shape is None:
        return
    told = False
    for rows in merged(streams):
        yield Chunk(number, shape, rows)
        told = True
    if not told:
        yield Chunk(number, shape, pa.RecordBatch.from_pylist([], copies.schema(ringed.layouts[table])))


class _Below(threading.Thread):
    """A branch at another node, read ahead by a few chunks, handed on one slice at a time.

    When it breaks it has no more rows, and names who was lost. Rows of it that have gone on by then are right, but its
    pieces do not count as whole.
    """

    def __init__(
        self, ringed: RingedJob, branch: Branch, versions: Versions, table: str, addresses: Mapping[str, str]
    ) -> None:
        super().__init__(name=f"holdfast-branch-{branch.at}", daemon=True)
        self._branch = branch
        self._outcome = Outcome()
        client = ringed.client(Address(branch.at, addresses[branch.at]))
        self._pull = Pull(ringed, client, branch, versions, table, addresses)
        self._ahead: queue.Queue[Chunk | None] = queue.Queue(AHEAD)
        self._next: Chunk | None = None
        self._begun = self._over = False
        self.start()

    def run(self) -> None:
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
        self.join()
        return self._outcome

    def close(self) -> None:
        self._over = True
        self._pull.cancel()
        self.join()

    def _peek(self) -> Chunk | None:
        if not self._begun:
            self._next, self._begun = self._ahead.get(), True
        return self._next

    def _put(self, chunk: Chunk | None) -> None:
        while not self._over:
            with suppress(queue.Full):
                return self._ahead.put(chunk, timeout=0.1)
        return None
