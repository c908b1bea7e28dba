"""What drivers, readers and tasks ask of containers beside the master's instructions, and of the master's own door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.wire.codec import Tagged
from holdfast.wire.messages import PUSHERS, READERS, Address, Call, Done, Groups, Mode, Push, Reply, Ticket

# ------------------------------------------------------------------------------------------- about a container itself


@dataclass(frozen=True)
class Pong(Reply):
    container: str
    pid: int


@dataclass(frozen=True)
class Ping(Call[Pong]):
    """Are you there?"""

    roles = READERS


@dataclass(frozen=True)
class StageSize:
    slices: int
    rows: int
    nbytes: int
    largest: tuple[int, ...] = ()
    """Rows of the largest units of its state, where the log has them."""


@dataclass(frozen=True)
class HostedStatus(Reply):
    stages: Mapping[str, StageSize]
    committed: int
    staged: int
    """Bytes that were pushed and not applied yet."""
    backups: int
    backup_bytes: int
    threads: int


@dataclass(frozen=True)
class AskStatus(Call[HostedStatus]):
    """What is there of the job?"""


@dataclass(frozen=True)
class SliceLoads(Reply):
    loads: Mapping[int, tuple[float, float]]
    """Slice → rows and seconds an epoch."""


@dataclass(frozen=True)
class AskLoads(Call[SliceLoads]):
    """How much work is each slice?"""


@dataclass(frozen=True)
class ThreadsSet(Reply):
    seconds: float


@dataclass(frozen=True)
class SetThreads(Call[ThreadsSet]):
    """Run on so many threads. ``repartition``: with every key in a new table, as others must (a baseline)."""

    threads: int
    repartition: bool = False


@dataclass(frozen=True)
class SetLimits(Call[Done]):
    """Other limits from now on, in bytes a second, for what is named: upload, download, from_store, copies."""

    links: Mapping[str, float | None]


@dataclass(frozen=True)
class Scrubbed(Reply):
    segments: int


@dataclass(frozen=True)
class Scrub(Call[Scrubbed]):
    """Read these epochs of the log back, every byte of them."""

    first: int
    last: int


@dataclass(frozen=True)
class CopyVersions(Reply):
    versions: Mapping[int, int]


@dataclass(frozen=True)
class AskVersions(Call[CopyVersions]):
    """Which versions of these slices are there as copies?"""

    roles = READERS
    slices: tuple[int, ...]


# ------------------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class Pin(Call[Done]):
    """Keep this committed epoch readable."""

    reader: str
    epoch: int


@dataclass(frozen=True)
class Unpin(Call[Done]):
    reader: str


@dataclass(frozen=True)
class Renewed(Reply):
    renewed: bool


@dataclass(frozen=True)
class Renew(Call[Renewed]):
    """Somebody still reads: of a container, or of the master, which tells them all."""

    roles = READERS
    reader: str


@dataclass(frozen=True)
class Got(Reply):
    epoch: int
    rows: bytes
    """As an Arrow stream."""


@dataclass(frozen=True)
class Get(Call[Got]):
    """The rows of these keys (an Arrow stream) as of ``epoch``; None: from a copy, as of whatever it has."""

    roles = READERS
    stage: str
    slice: int
    epoch: int | None
    keys: bytes


@dataclass(frozen=True)
class Collected(Reply):
    rows: tuple[bytes, ...]
    """Of each output, as an Arrow stream; empty if it has none."""


@dataclass(frozen=True)
class Collect(Call[Collected]):
    """Small outputs of stages, (stage, port), in one answer; large ones are scanned."""

    outputs: tuple[tuple[str, str], ...]
    slices: tuple[int, ...]
    epoch: int
    mode: Mode


@dataclass(frozen=True)
class ScanPart(Tagged):
    """Whose rows these are, one slice after the other: how many of each have come with them, in all."""

    slices: tuple[int, ...]
    through: tuple[int, ...]


@dataclass(frozen=True)
class ScanTicket(Ticket[ScanPart]):
    """Rows of a stage, slice by slice; of each from the row on that ``skip`` says."""

    roles = READERS
    stage: str
    epoch: int
    mode: Mode
    slices: tuple[int, ...]
    port: str = ""
    reader: str = ""
    skip: Mapping[int, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """Those that are wanted; none: all."""


@dataclass(frozen=True)
class RowsPush(Push):
    """One task's rows of one input for slices that live there. A stream that breaks off looks to its reader like one
    that ended, so it says first how long it is."""

    roles = PUSHERS
    epoch: int
    segment: str
    input: int
    slices: tuple[int, ...]
    chunks: int
    rows: int


@dataclass(frozen=True)
class RowsPart(Tagged):
    """Where the rows of each slice begin in a chunk: two arrays of 64-bit numbers."""

    slices: bytes
    bounds: bytes


# ------------------------------------------------------------------------------------------------ at the master's door


@dataclass(frozen=True)
class Located(Reply):
    groups: Groups


@dataclass(frozen=True)
class Locate(Call[Located]):
    """Where are these slices, once their owners have what the scan wants of them?"""

    roles = READERS
    slices: tuple[int, ...]
    epoch: int
    level: int
    mode: Mode


@dataclass(frozen=True)
class Described(Reply):
    job: str
    incarnation: int
    schema: str
    epoch: int
    groups: Groups
    reader: str = ""
    """Who has the lease, if one was asked for."""


@dataclass(frozen=True)
class Describe(Call[Described]):
    """What must a data source know of a stage to read it?"""

    roles = READERS
    stage: str
    lease: bool = False


@dataclass(frozen=True)
class Answered(Reply):
    epoch: int
    rows: bytes
    """As an Arrow stream."""


@dataclass(frozen=True)
class AskSql(Call[Answered]):
    """A question to the live state, from another process; to one ``job`` of a hub, or to all."""

    roles = READERS
    text: str
    job: str = ""


@dataclass(frozen=True)
class FromTask:
    """Said by the task on an executor that runs a container: which try of which container, and where."""

    container: str
    attempt: int
    executor: str
    host: str
    cores: int
    """Of the executor."""


@dataclass(frozen=True)
class Told(Reply):
    do: str
    """start, wait, leave or elsewhere"""


@dataclass(frozen=True)
class Arrived(FromTask, Call[Told]):
    """What shall I do?"""


@dataclass(frozen=True)
class Listening(FromTask, Call[Done]):
    location: str
    pid: int

    @property
    def address(self) -> Address:
        return Address(self.container, self.location)


@dataclass(frozen=True)
class Stay(Reply):
    stay: bool


@dataclass(frozen=True)
class MayIStay(FromTask, Call[Stay]):
    """Is the container wanted? Answered after a while, or at once if not."""


@dataclass(frozen=True)
class HasEnded(FromTask, Call[Done]):
    reason: str
    error: str = ""
    """In its wire form, if there was one."""
