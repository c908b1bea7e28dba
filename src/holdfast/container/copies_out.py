"""Sending copies of slices to peers, behind the epochs (ChronoStream III-B).

The owner pins the epoch and walks each slice in parts; a slice's lock is held for one part only. Each peer has a
thread that asks what the peer has, pulls the parts it lacks and writes them at the peer's own pace, so that a slow or
dead peer holds up nobody. A part that several peers want is encoded once, as long as they keep about the same pace:
what waits for the slower ones is bounded, and what was let go is encoded again. The ack is the peer's answer to
``versions`` afterwards, not the end of a stream.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.flight as flight

from holdfast import faults
from holdfast.container.job import HostedJob
from holdfast.container.messages import CopiesPush, CopyPart
from holdfast.container.priority import step_back
from holdfast.container.slices import table_name
from holdfast.container.throttle import Bucket
from holdfast.errors import EpochGone
from holdfast.state import copies
from holdfast.state.slice import SliceState
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.codec import Sender, pack
from holdfast.wire.messages import CopiesSent, SendCopies
from holdfast.wire.questions import AskVersions

STREAM_SECONDS = 600.0  # the end of a stream whose peer neither reads nor dies; we have given it up long before
SHARED_BYTES = 64 << 20
MESSAGE_BYTES = 1 << 20
Part = tuple[copies.Header, copies.Picked]


def copy(job: HostedJob, call: SendCopies, token: str) -> CopiesSent:
    """Bring the peers' backups of these slices to the epoch; what each has afterwards, and who failed and why.

    All peers together get what the job may send behind its epochs.
    """
    started = time.perf_counter()
    name = f"copy-{call.epoch}-{uuid.uuid4().hex}"
    addresses = {one.container: one for one in call.addresses}
    job.reading.pin(name, call.epoch)
    try:
        walk = Walk(job, name, call.epoch, Counter(number for _, slices in call.to for number in slices))
        bucket = Bucket(job.copy_bandwidth)
        speaker = Sender(job.job, call.fence.incarnation)
        senders = [
            PeerSender(walk, bucket, Client(addresses[peer], token, speaker), sorted(slices), speaker, call.silence)
            for peer, slices in call.to
            if peer in addresses
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.await_end()
    finally:
        job.reading.unpin(name, job.committed)
    failed = {peer: "it is gone" for peer, _ in call.to if peer not in addresses}
    return CopiesSent(
        call.id,
        tuple(
            (sender.peer, number, version)
            for sender in senders
            if sender.failed is None
            for number, version in sender.held.items()
        ),
        failed | {sender.peer: sender.failed for sender in senders if sender.failed is not None},
        rows=sum(sender.rows for sender in senders),
        nbytes=sum(sender.nbytes for sender in senders),
        seconds=time.perf_counter() - started,
    )


class Walk:
    """The parts of slices as of one epoch, encoded when the first peer wants them."""

    def __init__(self, job: HostedJob, pin: str, epoch: int, peers: Mapping[int, int]) -> None:
        self.job, self.pin, self.epoch = job, pin, epoch
        self.graph, self._tables = job.graph, job.tables  # if others come meanwhile, they are of later epochs
        self._peers = peers
        self._lock = threading.Lock()
        self._shared: OrderedDict[tuple[str, int, int, int, int], tuple[Part, int]] = OrderedDict()
        self._nbytes = 0

    @property
    def tables(self) -> int:
        """How many there are."""
        return len(self._tables)

    def parts(
        self, number: int, base: int, *, every: bool = False
    ) -> Iterator[tuple[str, int, copies.Header, copies.Picked]]:
        """All parts of a slice, table by table: of ``every`` table, or of those that may have changed since ``base``;
        of a slice that is new to the peer, of those that have ever had a row. Of one at least, so that there is
        something to tell the epoch by. With each comes how many tables there are. Raises ``EpochGone`` where slice or
        epoch are not here any more."""
        tables = self._tables if every else [one for one in self._tables if self._differs(one[0], number, base)]
        tables = tables or self._tables[:1]
        for stage, table in tables:
            start = 0
            while True:
                header, part = self._part(stage, table, number, base, start)
                yield table_name(stage, table), len(tables), header, part
                if header.last:
                    break
                start = header.stop

    def _differs(self, stage: str, number: int, base: int) -> bool:
        state: SliceState = self.job.reading.stage(stage).held(number).state
        return state.touched > base if base else not state.empty

    def _part(self, stage: str, table: int, number: int, base: int, start: int) -> Part:
        key = (stage, table, number, base, start)
        with self._lock:
            found = self._shared.pop(key, None)
            if found is None:
                self.job.reading.renew(self.pin)
                part, takers = self.job.reading.part(stage, table, number, base, self.epoch, start), self._peers[number]
            else:
                part, takers = found
                self._nbytes -= part[1].nbytes
            if takers > 1:
                self._shared[key] = (part, takers - 1)
                self._nbytes += part[1].nbytes
            while self._nbytes > SHARED_BYTES:
                _, ((_, old), _) = self._shared.popitem(last=False)
                self._nbytes -= old.nbytes
        return part


class Waiting:
    """Parts of many slices of one table: a message each would cost more than what is in most of them."""

    def __init__(self) -> None:
        self.about: list[tuple[int, int, int, copies.Header]] = []
        self.parts: list[copies.Picked] = []
        self.nbytes = 0

    def add(self, number: int, tables: int, header: copies.Header, part: copies.Picked, nbytes: int) -> None:
        self.about.append((number, part.rows, tables, header))
        self.parts.append(part)
        self.nbytes += nbytes


class PeerSender(threading.Thread):
    """What one peer gets, in a thread of its own."""

    def __init__(
        self, walk: Walk, bucket: Bucket, client: Client, slices: Sequence[int], speaker: Sender, silence: float
    ) -> None:
        super().__init__(name=f"holdfast-copy-{client.address.container}", daemon=True)
        self.peer = client.address.container
        self.held: dict[int, int] = {}
        self.failed: str | None = None
        self.nbytes = self.rows = 0
        self._walk, self._bucket, self._client, self._slices = walk, bucket, client, tuple(slices)
        self._incarnation, self._silence = speaker.incarnation, silence
        self._streams: dict[str, flight.FlightStreamWriter] = {}
        self._waiting: dict[str, Waiting] = {}
        self._progress = time.monotonic()
        self._given_up = False

    def await_end(self) -> None:
        """Until it is done, or has not got on for too long."""
        while self.is_alive():
            self.join(max(0.05, self._progress + self._silence - time.monotonic()))
            if self.is_alive() and time.monotonic() - self._progress >= self._silence:
                self._given_up = True
                self.failed = f"it took nothing for {self._silence:g} s"
                return

    def run(self) -> None:
        step_back()
        try:
            with self._client as client:
                try:
                    self._send(client, self._versions(client))
                finally:
                    self._close_streams()
                held = self._versions(client)
            if not self._given_up:
                self.held = held
        except Exception as error:  # whatever it is, it is about this peer only
            if not self._given_up:
                self.failed = f"{type(error).__name__}: {error}"

    def _versions(self, client: Client) -> dict[int, int]:
        answer = client.call(AskVersions(self._slices), timeout=self._silence)
        self._get_on()
        return dict(answer.versions)

    def _send(self, client: Client, have: Mapping[int, int]) -> None:
        for number in self._slices:
            base = have.get(number, -1)
            if base >= self._walk.epoch:
                continue  # it has this version, or a newer one
            with suppress(EpochGone):  # the slice has moved on, or the pin cost too much: the others may still be here
                for table, tables, header, part in self._walk.parts(number, max(base, 0)):
                    nbytes = part.nbytes
                    for bucket in (self._bucket, self._walk.job.upload):
                        bucket.take(nbytes, self._get_on)
                    waiting = self._waiting.setdefault(table, Waiting())
                    waiting.add(number, tables, header, part, nbytes)
                    if waiting.nbytes >= MESSAGE_BYTES:
                        self._write(client, table)
                    self.nbytes += nbytes
                    self.rows += part.rows
        for table in self._waiting:
            self._write(client, table)

    def _write(self, client: Client, table: str) -> None:
        """What has gathered of a table."""
        waiting, self._waiting[table] = self._waiting[table], Waiting()
        if waiting.about:
            rows = copies.encode(waiting.parts)
            stream = self._stream(client, table, rows.schema)
            stream.write_with_metadata(rows, pack(CopyPart(*zip(*waiting.about, strict=True))))
            self._get_on()
            faults.place("container", "mid-copy", self._walk.epoch)

    def _stream(self, client: Client, table: str, schema: pa.Schema) -> flight.FlightStreamWriter:
        if table not in self._streams:
            push = CopiesPush(self._incarnation, self._walk.pin, table, self._walk.graph)
            self._streams[table] = client.push(push, schema.remove_metadata(), STREAM_SECONDS)
        return self._streams[table]

    def _close_streams(self) -> None:
        """All of them, whatever one says; the first error is the one that counts."""
        errors = []
        for stream in self._streams.values():
            try:
                stream.close()
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _get_on(self) -> None:
        if self._given_up:
            raise Unreachable(f"{self.peer}: given up")
        self._progress = time.monotonic()
