"""The small files that say what happened: prepare, mark, taken, commit, owner, routing, manifest, ``job.json`` and
``graph/``.

Each is a frozen dataclass that knows its file name and its bytes. All but the last two are frames (JSON
first, then attachments as they are), so that one altered byte is an error and not another history.
``job.json`` and ``graph/<n>.json`` are for people too: plain JSON with a checksum field of its own.

It is long because every kind of small file is here, once, with its name and its bytes; none of them is.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from holdfast.errors import CorruptionError
from holdfast.log.footprints import Footprints
from holdfast.log.frames import FORMAT, FrameFile, FrameWriter, newer_format

__all__ = [
    "FEED",
    "FORMAT",
    "Batch",
    "Carried",
    "Commit",
    "Fence",
    "GraphFile",
    "JobFile",
    "LeftOut",
    "Manifest",
    "Mark",
    "Owner",
    "Prepare",
    "Range",
    "Ranges",
    "Rounds",
    "Routing",
    "SegmentRef",
    "Taken",
    "Waiting",
    "packed",
    "unpacked",
]


UNNAMED = -1
"""The graph of a prepare from before they named one."""
SPARK = "spark"
"""The folder of Spark's own checkpoint, in its section, until the graph names another."""


@dataclass(frozen=True, order=True)
class Fence:
    """Who speaks, and at which try: in every message and in the names of segments and packs. A lower one is refused
    everywhere.

    ``attempt`` counts how often this incarnation was offered this epoch. Each level's intake runs at most once in an
    attempt, so (fence, level) names one intake, and fences only ever grow.
    """

    incarnation: int
    epoch: int
    attempt: int


@dataclass(frozen=True)
class Batch:
    """A micro-batch of a Spark query. Up to format 3 an epoch took one of these, or was the ``tick``-th epoch without
    rows after it."""

    query_id: str
    batch_id: int
    offsets: str
    """The source offsets, or a digest of them."""
    tick: int = 0


@dataclass(frozen=True)
class Range:
    """Blocks of a stream, by their numbers, both ends included. One without blocks ends before it begins; where it
    ends is how far the stream has been read, also then."""

    first: int
    last: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.last + 1)

    def __bool__(self) -> bool:
        return self.first <= self.last


Ranges = Mapping[str, Range]
"""Stream → the blocks that an epoch takes of it."""
Rounds = Mapping[str, int]
"""Loop → how many of its rows wait for the next epoch; those of which none do are left out."""
FEED = "source"
"""The stream of all that the job reads: one Spark query."""


@dataclass(frozen=True)
class SegmentRef:
    """A segment as ``prepare`` names it. Without a ``name`` its bytes are attachment number ``inline``."""

    name: str
    rows: int
    nbytes: int
    checksum: int
    partition: int
    task: int
    inline: int | None = None
    input_rows: int = 0  # before pre-aggregation
    partial: tuple[int, ...] = ()  # the inputs that are pre-aggregated
    inputs: tuple[int, ...] | None = None  # those that it has rows of; None, as in stores of before: ask it


def segment_from(said: dict[str, Any]) -> SegmentRef:
    inputs = said.get("inputs")
    return SegmentRef(**(said | {"partial": tuple(said["partial"]), "inputs": inputs and tuple(inputs)}))


@dataclass(frozen=True)
class Carried:
    """Spark's own files of a batch, byte for byte: Spark syncs none of them, and cannot go on without.

    ``names`` are all the notes of its sources that count at this batch (see ``mending``). What is not among ``files``,
    here or in an earlier prepare, was synced before this one was written.
    """

    folder: str  # of Spark's checkpoint, in the section
    names: tuple[str, ...]
    files: dict[str, int]  # name → number of the attachment


@dataclass(frozen=True)
class Prepare:
    """What a level of an epoch is, for ever, whoever finishes it."""

    fence: Fence
    level: int
    ranges: Ranges
    segments: tuple[SegmentRef, ...]  # in partition order
    clock: int  # ms
    times: dict[str, int] = field(default_factory=dict)  # largest event times so far, µs
    watermark_before: dict[str, int] = field(default_factory=dict)  # stage → µs
    watermark_after: dict[str, int] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    routing: int = 0
    sinks: dict[str, int] = field(default_factory=dict)
    graph: int = 0  # the version of the graph in whose terms it is
    left_out: tuple[str, ...] = ()  # stages that go along without rows, because their job has raised
    resets: tuple[str, ...] = ()  # stages that are emptied before its rows
    cuts: tuple[str, ...] = ()  # stages that show fewer rows than they have until then
    batch: Batch | None = None  # up to format 3, of which there were no blocks: what it took
    spark: Carried | None = None  # up to format 3, of level 1: by now blocks have it
    feedback: Mapping[str, bytes] = field(default_factory=dict)
    """What the commit before holds for functions, and nothing of what is to be fed back from now on. Repeated here, so
    that whoever applies or replays the epoch needs no other file."""
    attachments: tuple[bytes, ...] = ()

    @staticmethod
    def file_of(epoch: int, level: int) -> str:
        return f"prepare/{epoch:010d}.{level}"

    @property
    def file(self) -> str:
        return self.file_of(self.fence.epoch, self.level)

    @property
    def position(self) -> int:
        """How far the source is read by the end of the epoch."""
        return self.ranges[FEED].last

    def given_to(self, before: Mapping[str, int]) -> tuple[str, ...]:
        """The sinks that get this epoch: those that count on from ``before``, the numbers as the last epoch left them.
        Others keep their number for the day they come back; of one over the source it may be of long ago."""
        return tuple(name for name, number in self.sinks.items() if number > before.get(name, -1))

    def to_bytes(self) -> bytes:
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("attachments", "batch")}
        said |= {"fence": asdict(self.fence), "segments": [asdict(ref) for ref in self.segments]}
        said |= _taken_to(self.ranges, self.batch)
        said["spark"] = asdict(self.spark) if self.spark else None
        for name in ("left_out", "resets", "cuts"):
            if not said[name]:
                del said[name]
        fed = said.pop("feedback")
        return packed(b"prep", said | _names_of(fed), (*self.attachments, *fed.values()))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Prepare:
        said, attachments = unpacked(data, name, b"prep")
        said["feedback"], attachments = _fed(said, attachments)
        said.setdefault("graph", UNNAMED)
        said["fence"] = Fence(**said["fence"])
        said["ranges"], said["batch"] = _taken_from(said, said["fence"].epoch)
        said |= {name: tuple(said.get(name, ())) for name in ("left_out", "resets", "cuts")}
        said["segments"] = tuple(segment_from(ref) for ref in said["segments"])
        if spark := said.get("spark"):
            said["spark"] = Carried(**(spark | {"names": tuple(spark["names"])}))
        return cls(**said, attachments=attachments)

    def renamed(self, names: Mapping[str, str]) -> Prepare:
        """The same in terms of a graph whose stages have other names."""

        def now(said: Mapping[str, int]) -> dict[str, int]:
            return {names.get(name, name): value for name, value in said.items()}

        return replace(
            self,
            times=now(self.times),
            watermark_before=now(self.watermark_before),
            watermark_after=now(self.watermark_after),
        )

    def carried(self) -> dict[str, bytes]:
        """Spark's files that are in it."""
        return {name: self.attachments[at] for name, at in self.spark.files.items()} if self.spark else {}


@dataclass(frozen=True)
class Mark:
    """That applying an epoch ``failed`` with the functions of that version of the graph, so that no sink has had any of
    it; or that it was ``applied`` with them after all, so that sinks may have."""

    fence: Fence
    kind: Literal["failed", "applied"]
    graph: int
    text: str = ""

    @staticmethod
    def file_of(epoch: int, kind: str, graph: int) -> str:
        return f"prepare/{epoch:010d}.{kind}{graph}"

    @property
    def file(self) -> str:
        return self.file_of(self.fence.epoch, self.kind, self.graph)

    def to_bytes(self) -> bytes:
        return packed(b"mark", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Mark:
        said, _ = unpacked(data, name, b"mark")
        return cls(**(said | {"fence": Fence(**said["fence"])}))


@dataclass(frozen=True)
class LeftOut:
    """That an epoch which is prepared goes on without these stages: applying it raised in one of them, and no sink has
    had any of it. The ``number``-th such note of the epoch has those of the notes before, too."""

    fence: Fence
    number: int
    stages: tuple[str, ...]
    text: str = ""
    sealed: bool = False
    """It is the last: sinks may have begun."""

    @staticmethod
    def file_of(epoch: int, number: int) -> str:
        return f"prepare/{epoch:010d}.without{number}"

    @property
    def file(self) -> str:
        return self.file_of(self.fence.epoch, self.number)

    def to_bytes(self) -> bytes:
        return packed(b"left", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> LeftOut:
        said, _ = unpacked(data, name, b"left")
        return cls(**(said | {"fence": Fence(**said["fence"]), "stages": tuple(said["stages"])}))


@dataclass(frozen=True)
class Taken:
    """That a sink has taken an epoch which is not committed yet: one that cannot know this by itself."""

    fence: Fence
    sink: str

    @staticmethod
    def file_of(epoch: int, sink: str) -> str:
        return f"prepare/{epoch:010d}.taken-{hashlib.sha256(sink.encode()).hexdigest()[:16]}"

    @property
    def file(self) -> str:
        return self.file_of(self.fence.epoch, self.sink)

    def to_bytes(self) -> bytes:
        return packed(b"takn", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Taken:
        said, _ = unpacked(data, name, b"takn")
        return cls(Fence(**said["fence"]), said["sink"])


@dataclass(frozen=True)
class Waiting:
    """Rows of a loop that the next epoch takes at this level. Their segments are named by that epoch, so that they stay
    for as long as its log does; few rows are attached to the commit that names them."""

    loop: str
    level: int
    segments: tuple[SegmentRef, ...]
    layout: str
    """A hash of whom the rows were taken in for."""

    @property
    def rows(self) -> int:
        return sum(ref.rows for ref in self.segments)


@dataclass(frozen=True)
class Commit:
    """That an epoch is done.

    ``sinks`` are their numbers as it leaves them: one that had no rows was not called, and keeps its number. None, as
    in stores of before: all that the prepare names were called. ``dropped`` were given up while an epoch was prepared
    for them, and have not come back: the number of that epoch, of which nobody but they know whether they had it.
    ``feedback`` is what functions see in the next epoch, ``waiting`` what goes round into it; few rows are attached.
    ``footprints`` say where the log has the units of the state, where it has them; small entries of them are attached.
    """

    fence: Fence
    ranges: Ranges
    sinks: dict[str, int] | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    feedback: Mapping[str, bytes] = field(default_factory=dict)
    batch: Batch | None = None  # as in ``Prepare``
    footprints: Footprints | None = None
    attachments: tuple[bytes, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    @staticmethod
    def file_of(epoch: int) -> str:
        return f"commit/{epoch:010d}"

    @property
    def file(self) -> str:
        return self.file_of(self.fence.epoch)

    @property
    def position(self) -> int:
        """How far the source is read by then."""
        return self.ranges[FEED].last

    @property
    def waiting_files(self) -> tuple[SegmentRef, ...]:
        """The rows that go round and are in files of their own."""
        return tuple(ref for one in self.waiting for ref in one.segments if ref.inline is None)

    def to_bytes(self) -> bytes:
        said = {"fence": asdict(self.fence), **_taken_to(self.ranges, self.batch)}
        said |= {} if self.sinks is None else {"sinks": self.sinks}
        said |= {"dropped": self.dropped} if self.dropped else {}
        said |= {"footprints": self.footprints.to_plain()} if self.footprints else {}
        said |= {"waiting": [asdict(one) for one in self.waiting]} if self.waiting else {}
        return packed(b"cmit", said | _names_of(self.feedback), (*self.attachments, *self.feedback.values()))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Commit:
        said, attachments = unpacked(data, name, b"cmit")
        fed, attachments = _fed(said, attachments)
        fence, known = Fence(**said["fence"]), said.get("footprints")
        ranges, batch = _taken_from(said, fence.epoch)
        marks = Footprints.from_plain(known) if known else None
        rounds = (one | {"segments": tuple(map(segment_from, one["segments"]))} for one in said.get("waiting", ()))
        waiting = tuple(Waiting(**one) for one in rounds)
        return cls(fence, ranges, said.get("sinks"), said.get("dropped", {}), fed, batch, marks, attachments, waiting)


@dataclass(frozen=True)
class Owner:
    """Who runs the job. The highest incarnation does; the others stop."""

    incarnation: int
    host: str
    pid: int
    address: str  # the master's Flight location
    started: int  # ms

    @staticmethod
    def file_of(incarnation: int) -> str:
        return f"owner/{incarnation:010d}"

    @property
    def file(self) -> str:
        return self.file_of(self.incarnation)

    def to_bytes(self) -> bytes:
        return packed(b"ownr", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Owner:
        return cls(**unpacked(data, name, b"ownr")[0])


@dataclass(frozen=True)
class Routing:
    """Which container has which slice: ``owners[slice]``."""

    version: int
    owners: tuple[str, ...]

    @staticmethod
    def file_of(version: int) -> str:
        return f"routing/{version:010d}"

    @property
    def file(self) -> str:
        return self.file_of(self.version)

    def to_bytes(self) -> bytes:
        return packed(b"rout", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Routing:
        said, _ = unpacked(data, name, b"rout")
        return cls(said["version"], tuple(said["owners"]))


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint of all slices at ``epoch``, verified by another process than its writers."""

    epoch: int
    fence: Fence
    packs: tuple[str, ...]
    slices: tuple[int, ...]  # slice s is in packs[slices[s]]
    verified_by: str
    graph: int | None = None  # in whose terms its epoch is; None, as in stores of before: the one of its time

    @staticmethod
    def file_of(epoch: int) -> str:
        return f"checkpoint/{epoch:010d}.complete"

    @property
    def file(self) -> str:
        return self.file_of(self.epoch)

    def pack_of(self, slice: int) -> str:
        return self.packs[self.slices[slice]]

    def to_bytes(self) -> bytes:
        said = asdict(self)
        return packed(b"mani", said if self.graph is not None else {k: v for k, v in said.items() if k != "graph"})

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Manifest:
        said, _ = unpacked(data, name, b"mani")
        said |= {key: tuple(said[key]) for key in ("packs", "slices")}
        return cls(**(said | {"fence": Fence(**said["fence"])}))


@dataclass(frozen=True)
class JobFile:
    """Whose store this is, and the graph that it was made for."""

    job_id: str
    name: str
    graph: dict[str, Any]  # the fingerprint; what JSON can say
    slices: int
    created: int  # ms
    format: int = FORMAT
    stages: list[dict[str, Any]] = field(default_factory=list)  # plain stage plans; stores of old have none
    hash_seed: int = 0  # PYTHONHASHSEED of every container, for the life of the job; see ``__post_init__``
    made_names: list[str] = field(default_factory=list)  # of stages that nobody has named
    names: dict[str, str] = field(default_factory=dict)  # as in ``GraphFile``
    forked: str = ""  # the snapshot that it began with

    file = "job.json"

    def __post_init__(self) -> None:
        """The id was drawn by chance, once: a store of old, whose file cannot be changed, has its seed by it too."""
        if not self.hash_seed:
            object.__setattr__(self, "hash_seed", zlib.crc32(self.job_id.encode()) or 1)

    def to_bytes(self) -> bytes:
        return _to_json(_without_later(asdict(self)))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> JobFile:
        return cls(**_from_json(data, name))


@dataclass(frozen=True)
class GraphFile:
    """The graph that the job has since ``epoch``, with the checkpoint that begins it. The highest version counts.

    Everything up to ``epoch`` was logged and checkpointed in terms of the graph before. The checkpoint stands in the
    same file, so that whoever sees the new graph sees its state too. So does what it mends: of the epoch after
    ``epoch``, which had failed or differs by names alone (``renamed``), the first ``mends`` levels were prepared before
    and are finished by this graph. And so does the folder of Spark's own checkpoint, which depends on what reads the
    sources.

    A ``live`` graph was made while the job ran. It changes no shape of any state, so ``epoch`` and the checkpoint are
    those of the graph before, and it begins with the first epoch whose prepare names it. Until then it counts for
    nothing: its driver may have died in between, and then it never counts.
    """

    version: int
    epoch: int
    incarnation: int  # of the driver that made it
    graph: dict[str, Any]
    stages: list[dict[str, Any]]
    changes: list[str]
    packs: list[str]
    slices: list[int]  # slice s is in packs[slices[s]]
    created: int  # ms
    format: int = FORMAT
    mends: int = 0
    spark: str = SPARK
    made_names: list[str] = field(default_factory=list)  # as in ``JobFile``
    renamed: dict[str, str] = field(default_factory=dict)
    """Names of stages and their times in what was prepared before, and what they are now."""
    live: bool = False
    former: int | None = None  # the version that it follows; None: the one before
    names: dict[str, str] = field(default_factory=dict)
    """Of a hub: what its jobs call their stages, and what they are called here."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    """What was changed while the job ran, beside what its program draws: to be changed again at its next start."""
    packed: int | None = None  # the version that ``packs`` were made for; None: this one
    by: str = ""  # who asked for it, where somebody did while the job ran
    kept: bool = False  # no shape of any state is another than in the graph before, though it was made at a start
    past: dict[str, Any] = field(default_factory=dict)
    """What is to be known of the graphs before it when their files are gone (``log.past``)."""
    splits: dict[str, str] = field(default_factory=dict)
    """Stages that begin with what others hold before the epoch ``splits_at``, the first of this graph."""
    splits_at: int | None = None
    turns: dict[str, list[str]] = field(default_factory=dict)
    """What its first epoch does to stages: ``resets`` are emptied, ``cuts`` cut down, ``idle`` go along without rows. A
    driver may die when a block names the graph and no prepare does."""
    units: dict[str, list[int]] = field(default_factory=dict)
    """Where the log above ``epoch`` has units of the state: how many of each stage's slices the checkpoint has."""

    @staticmethod
    def file_of(version: int) -> str:
        return f"graph/{version:010d}.json"

    @property
    def follows(self) -> int:
        return self.version - 1 if self.former is None else self.former

    @property
    def file(self) -> str:
        return self.file_of(self.version)

    @property
    def manifest(self) -> Manifest | None:
        """The checkpoint that the graph begins with; None if no epoch had been committed."""
        if not self.packs:
            return None
        fence = Fence(self.incarnation, self.epoch, 0)
        by = "the driver that changed the graph"
        return Manifest(self.epoch, fence, tuple(self.packs), tuple(self.slices), by, self.begun)

    @property
    def begun(self) -> int:
        """The version whose stages its checkpoint has."""
        return self.version if self.packed is None else self.packed

    def to_bytes(self) -> bytes:
        return _to_json(_without_later(asdict(self)))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> GraphFile:
        return cls(**_from_json(data, name))


_LATER = {
    *("live", "former", "names", "updates", "packed", "kept", "past", "by"),
    *("splits", "splits_at", "turns", "forked", "units"),
}


def _without_later(said: dict[str, Any]) -> dict[str, Any]:
    """What only hubs and live changes have is left out elsewhere: versions of before read the rest."""
    nothing: tuple[object, ...] = (False, None, {}, [], "")
    return {
        name: value
        for name, value in said.items()
        if name not in _LATER or not any(type(value) is type(one) and value == one for one in nothing)
    }


def _taken_to(ranges: Ranges, batch: Batch | None) -> dict[str, Any]:
    if batch is not None:  # as it was read
        return {"ranges": {FEED: asdict(batch)}}
    return {"ranges": {stream: [one.first, one.last] for stream, one in ranges.items()}}


def _taken_from(said: dict[str, Any], epoch: int) -> tuple[Ranges, Batch | None]:
    """Up to format 3 a file named the batch of its epoch, and up to format 2 as if there were nothing else to take in.
    Blocks go on from the last such epoch, so its number is how far the source was read."""
    if "ranges" in said:
        found = said["ranges"]
        if all(isinstance(one, list) for one in found.values()):
            said.pop("batch", None)
            return {stream: Range(*one) for stream, one in found.items()}, None
        batch = Batch(**found[FEED])
    else:
        query_id, batch_id, offsets = (said.pop(name) for name in ("query_id", "batch_id", "offsets"))
        batch = Batch(query_id, batch_id, offsets, said.pop("tick", 0))
    return {FEED: Range(epoch + 1, epoch) if batch.tick else Range(epoch, epoch)}, batch


def _to_json(said: dict[str, Any]) -> bytes:
    return json.dumps(said | {"checksum": _checksum(said)}, indent=2).encode() + b"\n"


def _from_json(data: bytes, name: str) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(data)
        checksum, found = said.pop("checksum"), int(said["format"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorruptionError(f"{name} is not the JSON that was written") from None
    if found > FORMAT:
        raise newer_format(name, found)
    if checksum != _checksum(said):
        raise CorruptionError(f"{name} has been changed: its checksum is not that of its content")
    return said


def _checksum(said: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(said, sort_keys=True).encode()):08x}"


def _names_of(feedback: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Its rows are the last attachments, in this order."""
    return {"feedback": list(feedback)} if feedback else {}


def _fed(said: Mapping[str, Any], attachments: tuple[bytes, ...]) -> tuple[dict[str, bytes], tuple[bytes, ...]]:
    """What is fed back, and the other attachments."""
    names = said.get("feedback", [])
    others = len(attachments) - len(names)
    return dict(zip(names, attachments[others:], strict=True)), attachments[:others]


def packed(kind: bytes, said: dict[str, Any], attachments: Sequence[bytes] = ()) -> bytes:
    frames = FrameWriter(kind)
    parts = frames.add(json.dumps(said, separators=(",", ":")).encode())
    for attachment in attachments:
        parts += frames.add(attachment)
    return b"".join(parts + frames.finish({}))


def unpacked(data: bytes, name: str, kind: bytes) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    frames = FrameFile.of(data, name, kind)
    said = json.loads(bytes(frames.frame(0)))
    return said, tuple(bytes(frames.frame(number)) for number in range(1, len(frames)))
