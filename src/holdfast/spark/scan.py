"""Reading a stage's rows out of the containers, from a Spark task, the driver or a data source alike.

A scan is cut into parts by ranges of slice numbers, so that what is in a part does not depend on who owns what just
then. It knows where slices were when it was planned. If a container dies under it, it asks the master where its slices
are now, waits until the new owner has caught up, and goes on at the next row: outputs are deterministic and in order,
so nothing comes twice and nothing is missing.

A scan of a committed epoch is a reader, with a lease on every container. As long as one of its parts is being read, a
thread renews the lease everywhere: other parts may not have begun, and whoever takes the rows may be slow. It ends with
the process that reads, and so does the lease.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from holdfast.errors import ContainerError, EpochGone, HoldfastError
from holdfast.spark.workers import set_aside
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.codec import Sender
from holdfast.wire.messages import Address, Groups, Mode
from holdfast.wire.questions import Locate, Renew, ScanTicket

GIVE_UP_SECONDS = 180.0
RENEW_SECONDS = 15.0
MOVES = 3
"""So often a slice that is read may turn out to have moved."""
Owner = TypeVar("Owner", bound=Hashable)


@dataclass(frozen=True)
class Scan:
    """What to read of one stage, and from whom."""

    master: Address
    token: str = field(repr=False)
    job: str
    incarnation: int
    stage: str
    level: int
    epoch: int
    mode: Mode  # changed | all | changelog: outputs of the epoch in flight; read: a committed epoch
    parts: tuple[Groups, ...]
    port: str = ""
    reader: str = ""  # who has the lease that keeps a committed epoch
    columns: tuple[str, ...] = ()  # those that are wanted; none: all

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As ``mapInArrow`` runs it: each incoming id is the number of a part."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.part(number)
        set_aside("scan")

    def part(self, number: int) -> Iterator[pa.RecordBatch]:
        with self._kept():
            yield from self._part(number)

    def _part(self, number: int) -> Iterator[pa.RecordBatch]:
        received: dict[int, int] = {}
        pending = self.parts[number]
        missing: set[int] = set()
        since = 0.0  # when the first of the missing slices was missed
        asked = 0  # how often the master was asked where slices are
        while pending or missing:
            for address, group in pending:
                try:
                    yield from self._read(address, group, received)
                except (Unreachable, EpochGone) as error:
                    if isinstance(error, EpochGone) and self.mode == "read" and asked >= MOVES:
                        raise  # nobody has it any more; before that a slice may just have moved
                    # Asking again for a slice that is whole already costs one empty answer.
                    missing.update(group)
                    since = since or time.monotonic()
                else:
                    missing.difference_update(group)
            if not missing:
                return
            if time.monotonic() - since > GIVE_UP_SECONDS:
                raise ContainerError(
                    f"Slices {sorted(missing)[:5]}… of '{self.stage}' had no owner at epoch {self.epoch} for too long.",
                    safe="The epoch is prepared and will be finished by the next start of the job.",
                    todo="Look at run.status().events for why no container could take them.",
                )
            time.sleep(0.05)
            asked += 1
            pending = self._locate(sorted(missing))

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Meanwhile the lease is renewed."""
        if not self.reader:
            yield
            return
        over = threading.Event()

        def renew() -> None:
            with Client(self.master, self.token) as client:
                while not over.wait(RENEW_SECONDS):
                    # One that is missed costs nothing: a lease is several of these long.
                    with contextlib.suppress(Unreachable, HoldfastError):
                        client.call(Renew(self.reader), RENEW_SECONDS)

        thread = threading.Thread(target=renew, daemon=True, name="holdfast-lease")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _read(self, address: Address, slices: tuple[int, ...], received: dict[int, int]) -> Iterator[pa.RecordBatch]:
        skip = {number: received[number] for number in slices if number in received}
        ticket = ScanTicket(self.stage, self.epoch, self.mode, slices, self.port, self.reader, skip, self.columns)
        with Client(address, self.token, Sender(self.job, self.incarnation)) as client:
            for part, batch in client.scan(ticket):
                received.update(zip(part.slices, part.through, strict=True))
                yield batch

    def _locate(self, slices: list[int]) -> Groups:
        with Client(self.master, self.token) as client:
            return client.call(Locate(tuple(slices), self.epoch, self.level, self.mode), 60.0).groups


def group_by_owner(slices: Iterable[int], owner: Callable[[int], Owner]) -> dict[Owner, tuple[int, ...]]:
    grouped: dict[Owner, list[int]] = {}
    for number in slices:
        grouped.setdefault(owner(number), []).append(number)
    return {one: tuple(numbers) for one, numbers in grouped.items()}


def in_ranges(groups: Groups, parts: int | None = None) -> tuple[Groups, ...]:
    """All slices, in about so many ranges of neighbours; if nobody says so, in as many as there are containers."""
    owners = {number: address for address, slices in groups for number in slices}
    size = max(1, -(-len(owners) // max(len(groups) if parts is None else parts, 1)))
    numbers = sorted(owners)
    ranges = (numbers[at : at + size] for at in range(0, len(numbers), size))
    return tuple(tuple(group_by_owner(some, owners.__getitem__).items()) for some in ranges)
