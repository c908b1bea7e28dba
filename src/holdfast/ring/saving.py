"""An owner saves its slices to the ring, behind the epochs (SR3 §3.3).

It pins a committed epoch, asks the leaf set of each slice's key what is there, and sends each piece to its holders: the
rows changed since the version that is usable now, or all of them to a holder that lacks that version. A piece of which
nothing changed costs a message without rows. What counts is what the holders say they have afterwards: a slice is
**usable** at the epoch when each of its pieces has one holder, **whole** when each has n.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from holdfast import faults
from holdfast.container.copies_out import STREAM_SECONDS, Walk
from holdfast.container.priority import step_back
from holdfast.container.throttle import Bucket
from holdfast.errors import EpochGone, HoldfastError
from holdfast.ring.job import RingedJob
from holdfast.ring.messages import AskPieces, DropPieces, PiecePart, PiecesPush, Shape
from holdfast.safety.shards import Held, PieceName, Version, choose, holders, least_copies
from holdfast.state.copies import encode
from holdfast.state.merging import cut
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.codec import pack
from holdfast.wire.locations import host_of
from holdfast.wire.messages import Address, SaveShards, ShardsSaved

SILENCE_SECONDS = 10.0
WAITING = 16
"""Parts that wait for one holder at most."""
Inventory = dict[str, tuple[Held, ...]]


@dataclass(frozen=True)
class Placed:
    """Where the pieces of a slice go, and which version of them is usable until the new one is."""

    slice: int
    settled: Version | None
    holders: Mapping[PieceName, tuple[str, ...]]
    bases: Mapping[tuple[PieceName, str], Version | None]
    """What the holder's rows start from; None: it gets all of them."""

    def lacks(self, version: Version) -> bool:
        """A holder may lack the version that is asked for, if another was lost, though the slice is usable at it."""
        if self.settled is None or self.settled < version:
            return True
        return self.settled == version and None in self.bases.values()

    @property
    def most(self) -> int:
        """Copies there are if all holders have their pieces."""
        return min((len(names) for names in self.holders.values()), default=0)


def save(ringed: RingedJob, call: SaveShards) -> ShardsSaved:
    """Bring the pieces of these slices to the epoch; of how many copies each is afterwards, at least."""
    started = time.perf_counter()
    epoch, slices = call.epoch, sorted(call.slices)
    job, version, saving = ringed.job, Version(epoch), f"save-{epoch}-{uuid.uuid4().hex}"
    job.reading.pin(saving, epoch)  # before anyone is asked: epochs go on meanwhile
    try:
        around = {number: {one.container: one for one in ringed.leaf(number)} for number in slices}
        peers = {name: address for leaves in around.values() for name, address in leaves.items()}
        inventory = ask(ringed, peers, slices)
        load = Counter({name: len(held) for name, held in inventory.items()})
        plans, done = [], {}
        for number in slices:
            leaves = {name: host_of(address.location) for name, address in around[number].items() if name in inventory}
            placed = _place(ringed, number, leaves, inventory, load)
            if placed.lacks(version):
                plans.append(placed)
            else:
                done[number] = _copies(placed, placed.settled, inventory)
        sent = _send(ringed, saving, version, plans, peers, job.copy_bandwidth)
    finally:
        job.reading.unpin(saving, job.committed)
    after = ask(ringed, {name: peers[name] for name in sent.holders}, slices) if sent.holders else {}
    done |= {placed.slice: _copies(placed, version, after) for placed in plans}
    whole = [placed for placed in plans if 0 < done[placed.slice] == placed.most]
    _release(ringed, version, whole, peers, inventory)
    seconds = time.perf_counter() - started
    return ShardsSaved(call.id, tuple(sorted(done.items())), sent.failed, sent.rows, sent.nbytes, seconds)


def ask(ringed: RingedJob, peers: Mapping[str, Address], slices: Collection[int]) -> Inventory:
    """What each of these containers holds of these slices; those that do not answer are left out."""

    def one(peer: Address) -> tuple[str, tuple[Held, ...] | None]:
        if peer.container == ringed.me:
            return peer.container, tuple(ringed.pieces.inventory(slices))
        try:
            answer = ringed.client(peer).call(AskPieces(frozenset(slices)), timeout=SILENCE_SECONDS)
        except (Unreachable, HoldfastError):
            return peer.container, None
        return peer.container, answer.held

    return {name: held for name, held in ringed.crew.map(one, list(peers.values())) if held is not None}


def _place(
    ringed: RingedJob, number: int, leaves: Mapping[str, str], inventory: Inventory, load: Counter[str]
) -> Placed:
    shape = ringed.terms.cut
    pieces = shape.pieces(number)
    settled = choose(pieces, inventory)
    kept: defaultdict[PieceName, set[str]] = defaultdict(set)
    for name, held in inventory.items():
        for one in held:
            if one.piece.slice == number and one.version == settled:
                kept[one.piece].add(name)
    found = holders(pieces, leaves, ringed.me, shape.n, load, kept)
    for piece, names in found.items():
        load.update(name for name in names if name not in kept[piece])
    bases = {
        (piece, name): settled if name in kept[piece] else None for piece, names in found.items() for name in names
    }
    return Placed(number, settled, found, bases)


def _copies(placed: Placed, version: Version | None, inventory: Inventory) -> int:
    """Of the piece that the fewest of its holders have: others may let it go at any time."""
    taken: defaultdict[PieceName, set[str]] = defaultdict(set)
    for name, held in inventory.items():
        for one in held:
            if one.version == version and name in placed.holders.get(one.piece, ()):
                taken[one.piece].add(name)
    return least_copies(placed.holders, taken)


def _release(
    ringed: RingedJob,
    version: Version,
    saved: Sequence[Placed],
    peers: Mapping[str, Address],
    inventory: Inventory,
) -> None:
    """Whoever holds pieces that are whole elsewhere now, the owner of the slice too, may let them go.

    Only up to ``version``: when this arrives late, another saving may have made it a holder again.
    """
    surplus: defaultdict[str, set[int]] = defaultdict(set)
    kept: defaultdict[str, set[PieceName]] = defaultdict(set)
    for placed in saved:
        for piece, names in placed.holders.items():
            for name in names:
                kept[name].add(piece)
        for name, held in inventory.items():
            if any(one.piece.slice == placed.slice and name not in placed.holders[one.piece] for one in held):
                surplus[name].add(placed.slice)
    for name, slices in surplus.items():
        if name == ringed.me:
            ringed.pieces.drop(slices, version)
            continue
        drop = DropPieces(frozenset(slices), version, tuple(sorted(kept[name])))
        with suppress(Unreachable, HoldfastError):
            ringed.client(peers[name]).call(drop, timeout=SILENCE_SECONDS)


# ---------------------------------------------------------------------------------------------------------- sending


@dataclass
class Sent:
    holders: set[str]
    failed: dict[str, str]
    nbytes: int = 0
    rows: int = 0


def _send(
    ringed: RingedJob,
    saving: str,
    version: Version,
    plans: Sequence[Placed],
    peers: Mapping[str, Address],
    bandwidth: float | None,
) -> Sent:
    names = {name for placed in plans for found in placed.holders.values() for name in found}
    if not names:
        return Sent(set(), {})
    bucket = Bucket(bandwidth)
    walk = Walk(ringed.job, saving, version.epoch, Counter())
    senders = {name: Sender(ringed, walk, version, peers[name], bucket) for name in names}
    for sender in senders.values():
        sender.start()
    try:
        for placed in plans:
            with suppress(EpochGone):  # the slice has moved on, or the pin cost too much: the others may still be here
                _send_slice(ringed, walk, placed, senders)
    finally:
        for sender in senders.values():
            sender.finish()
    for sender in senders.values():
        sender.await_end()
    return Sent(
        names,
        {name: sender.failed for name, sender in senders.items() if sender.failed is not None},
        sum(sender.nbytes for sender in senders.values()),
        sum(sender.rows for sender in senders.values()),
    )


def _send_slice(ringed: RingedJob, walk: Walk, placed: Placed, senders: Mapping[str, Sender]) -> None:
    pieces, bounds = ringed.terms.cut.pieces(placed.slice), ringed.terms.cut.bounds()
    for base in sorted(set(placed.bases.values()) - {Version(walk.epoch)}, key=str):
        numbers: Counter[tuple[PieceName, str]] = Counter()
        to = {piece: [name for name in placed.holders[piece] if placed.bases[piece, name] == base] for piece in pieces}
        for table, _, header, picked in walk.parts(placed.slice, base.epoch if base else 0, every=True):
            part = encode([picked])
            rows = dict(cut(part, bounds))
            for place, piece in enumerate(pieces):
                mine = rows.get(place)
                if mine is None and not header.last:
                    continue
                about = PiecePart(
                    piece,
                    Version(walk.epoch),
                    base,
                    placed.settled,
                    header.full,
                    Shape(header.rows, header.purged_at),
                    numbers[piece, table],
                    header.last,
                )
                numbers[piece, table] += 1
                for name in to[piece]:
                    senders[name].put(table, about, part.slice(0, 0) if mine is None else mine)


class Sender(threading.Thread):
    """What one holder gets, at its own pace, in a thread of its own."""

    def __init__(self, ringed: RingedJob, walk: Walk, version: Version, to: Address, bucket: Bucket) -> None:
        super().__init__(name=f"holdfast-save-{to.container}", daemon=True)
        self.failed: str | None = None
        self.nbytes = self.rows = 0
        self._ringed, self._walk, self._version, self._to, self._bucket = ringed, walk, version, to, bucket
        self._waiting: queue.Queue[tuple[str, PiecePart, pa.RecordBatch] | None] = queue.Queue(WAITING)
        self._progress = time.monotonic()

    def put(self, table: str, about: PiecePart, rows: pa.RecordBatch) -> None:
        """Waits for a slow holder, but not for one that takes nothing at all."""
        self._offer((table, about, rows))

    def finish(self) -> None:
        self._offer(None)

    def await_end(self) -> None:
        while self.is_alive() and self.failed is None:
            self.join(0.5)
            self._look_for_silence()

    def _offer(self, entry: tuple[str, PiecePart, pa.RecordBatch] | None) -> None:
        while self.is_alive() and self.failed is None:
            try:
                return self._waiting.put(entry, timeout=0.5)
            except queue.Full:
                self._look_for_silence()
        return None

    def _look_for_silence(self) -> None:
        if self.is_alive() and time.monotonic() - self._progress > SILENCE_SECONDS:
            self.failed = f"it took nothing for {SILENCE_SECONDS:g} s"

    def run(self) -> None:
        step_back()
        streams: dict[str, flight.FlightStreamWriter] = {}
        try:
            client = self._ringed.client(self._to)
            try:
                while (entry := self._waiting.get()) is not None and self.failed is None:
                    self._write(client, streams, *entry)
            finally:
                for stream in streams.values():
                    stream.close()
        except Exception as error:  # whatever it is, it is about this holder only
            self.failed = self.failed or f"{type(error).__name__}: {error}"

    def _write(
        self,
        client: Client,
        streams: dict[str, flight.FlightStreamWriter],
        table: str,
        about: PiecePart,
        rows: pa.RecordBatch,
    ) -> None:
        nbytes = int(rows.nbytes)
        self._bucket.take(nbytes, self._get_on)
        if table not in streams:
            ringed, walk = self._ringed, self._walk
            push = PiecesPush(ringed.incarnation, walk.pin, ringed.me, table, walk.tables, walk.graph)
            streams[table] = client.push(push, rows.schema.remove_metadata(), STREAM_SECONDS)
        with self._ringed.meters.upload.under_way(nbytes):
            self._ringed.upload.take(nbytes, self._get_on)
            streams[table].write_with_metadata(rows, pack(about))
        faults.place("container", "mid-save", self._version.epoch)
        self.nbytes += nbytes
        self.rows += rows.num_rows
        self._get_on()

    def _get_on(self) -> None:
        self._progress = time.monotonic()
