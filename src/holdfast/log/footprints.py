"""What the log says of units of state: entries of slices, and the chain of them that the commits are.

An **entry** is what one epoch has to say of one slice of one stage: control rows, and the rows of the state that they
speak of. The entries that a container writes for a level of an epoch are one file of frames, or ride in its answer and
then in the commit while they are few. ``commit e`` names the file of every slice that has an entry, and the epoch of
the slice's entry before; and of every slice, with an entry or without, where its newest is and how many units live. So
a slice's history is walked from the newest commit backwards, and a file that no commit names is garbage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import CorruptionError
from holdfast.log.files import Part
from holdfast.log.frames import FrameFile, FrameWriter

if TYPE_CHECKING:
    from holdfast.log.ledger import Ledger
    from holdfast.log.records import GraphFile

CLOSE = 2
"""Of kinds the one that says that a unit lives no more."""
INLINE_BYTES = 64 << 10
"""So much of a container's entries rides in its answer."""
_KIND = b"entr"
_NAME = re.compile(r"(?:.*/)?(\d{10,})\.(\d+)-(\d+)-(.+)\.entry")
_CONTROL = pa.schema([pa.field("unit", pa.int64()), pa.field("kind", pa.int8()), pa.field("rows", pa.int64())])
MORE = 8
"""Every so manieth part more that was read of a chain it is counted again what was found."""

Ints = npt.NDArray[np.int64]
Head = tuple[int, int, int]
"""Of a slice: the epoch of its newest entry (0: it has none), its living units, and the oldest footprint of one."""


def entry_name(epoch: int, level: int, incarnation: int, label: str) -> str:
    return f"entry/{epoch:010d}.{level}-{incarnation}-{label}.entry"


def epoch_of(name: str) -> int | None:
    """The epoch that a file's name says; None if it is no file of entries."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


@dataclass(frozen=True)
class Wrote:
    """What a container has written of a level: a file, or the bytes of it."""

    name: str
    checksum: int
    told: Mapping[str, tuple[tuple[int, int, int], ...]]
    """Of every stage, the slices that have an entry: (slice, living units, oldest footprint)."""
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class EntryFile:
    """A file of entries as a commit names it. Its bytes may be attachment number ``inline``."""

    name: str
    checksum: int
    inline: int | None = None


@dataclass(frozen=True)
class Footprints:
    """Of a commit: where its entries are, and how every slice stands after it."""

    files: tuple[EntryFile, ...] = ()
    entries: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    """Stage → slice → the number of its file, and the epoch of its entry before."""
    heads: Mapping[str, tuple[Head, ...]] = field(default_factory=dict)
    """Stage → of every slice."""
    oldest: int = 0
    """The oldest footprint of any unit: recovery replays what is above it."""
    base: int = 0
    """The epoch of the checkpoint that the graph begins with, which has every unit that no entry speaks of; 0: there
    is none."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_plain(said: Mapping[str, Any]) -> Footprints:
        return Footprints(
            tuple(EntryFile(**one) for one in said["files"]),
            {
                stage: {int(number): (file, before) for number, (file, before) in of.items()}
                for stage, of in said["entries"].items()
            },
            {stage: tuple((epoch, living, old) for epoch, living, old in of) for stage, of in said["heads"].items()},
            said["oldest"],
            said.get("base", 0),
        )

    def after(self, epoch: int, wrote: Sequence[tuple[str, int, Wrote]]) -> tuple[Footprints, tuple[bytes, ...]]:
        """As ``epoch`` leaves them, with what was written of each (stage, slice); and what is attached."""
        files: dict[str, int] = {}
        attached: list[bytes] = []
        named: list[EntryFile] = []
        entries: dict[str, dict[int, tuple[int, int]]] = {}
        heads = {stage: list(of) for stage, of in self.heads.items()}
        for stage, number, one in wrote:
            living, oldest = next((live, old) for at, live, old in one.told[stage] if at == number)
            if one.name not in files:
                files[one.name] = len(named)
                named.append(EntryFile(one.name, one.checksum, None if one.data is None else len(attached)))
                attached += [] if one.data is None else [one.data]
            entries.setdefault(stage, {})[number] = files[one.name], heads[stage][number][0]
            heads[stage][number] = epoch, living, oldest
        left = [old for of in heads.values() for _, living, old in of if living]
        plain = {stage: tuple(of) for stage, of in heads.items()}
        return Footprints(tuple(named), entries, plain, min(left, default=epoch), self.base), tuple(attached)

    @staticmethod
    def begin(stages: Iterable[str], slices: int) -> Footprints:
        """Before the first epoch."""
        return Footprints(heads=dict.fromkeys(stages, ((0, 0, 0),) * slices))

    @staticmethod
    def above(graph: GraphFile) -> Footprints:
        """Right after the epoch of a graph's checkpoint, which is a footprint of every unit that it has."""
        heads = {stage: tuple((0, living, graph.epoch) for living in of) for stage, of in graph.units.items()}
        return Footprints(heads=heads, oldest=graph.epoch, base=graph.epoch)


@dataclass(frozen=True)
class SliceSaid:
    """A slice's entry, beside its rows: after it, how many units live, how many control rows there are in all, how many
    rows of the input were taken."""

    number: int
    living: int
    logged: int
    taken: int
    rows: tuple[int, ...]
    """Of the control rows and of each table."""


class EntryWriter:
    """Lays out the entries of a container for a level of an epoch."""

    def __init__(self) -> None:
        self._frames = FrameWriter(_KIND)
        self._parts: list[Part] = []
        self._stages: dict[str, list[Any]] = {}

    def add(self, stage: str, said: Sequence[SliceSaid], batches: Sequence[pa.RecordBatch]) -> None:
        """The entries of some slices of a stage, one after the other in each batch: control rows, then the tables'. A
        stage may have several such groups, each of which is read by itself."""
        first = len(self._frames)
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as out:
                out.write_batch(batch)
            self._parts += self._frames.add(sink.getvalue())
        told = {"frame": first, "batches": len(batches), "slices": [asdict(one) for one in said]}
        self._stages.setdefault(stage, []).append(told)

    def finish(self) -> tuple[list[Part], int]:
        """The file, and its checksum."""
        parts = self._parts + self._frames.finish({"stages": self._stages})
        return parts, self._frames.checksum or 0


def control_rows(units: Ints, kinds: npt.NDArray[np.int8], rows: Ints) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(units), pa.array(kinds), pa.array(rows)], schema=_CONTROL)


@dataclass(frozen=True, eq=False)
class Entry:
    """A slice's entry, as it was read."""

    epoch: int
    before: int
    said: SliceSaid
    units: Ints
    kinds: npt.NDArray[np.int8]
    rows: Ints
    tables: Sequence[pa.RecordBatch]


class Chains:
    """Reads histories of slices. What it has read stays, for the other slices of the same files."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._footprints: dict[int, tuple[Footprints, tuple[bytes, ...]]] = {}
        self._files: dict[tuple[int, int], FrameFile] = {}
        self._batches: dict[tuple[int, int, int], pa.RecordBatch] = {}
        self.nbytes = 0

    @property
    def base(self) -> int:
        """The epoch of the checkpoint that the graph begins with, if that has units; 0: the first entries have all."""
        graph = self._ledger.graph()
        return graph.epoch if graph is not None and graph.units else 0

    def head(self, stage: str, number: int, epoch: int) -> Head:
        return self._of(epoch)[0].heads[stage][number]

    def history(self, stage: str, number: int, epoch: int) -> list[Entry]:
        """The entries of a slice, newest first, as far as all units that live after ``epoch`` have been found; or all
        of them, if the others are in the checkpoint that the graph begins with."""
        at, living, oldest = self.head(stage, number, epoch)
        read: list[Entry] = []
        rows, counted = 0, 0
        found = 0
        while found < living:
            if not at and self.base:
                break
            if not at:
                raise CorruptionError(
                    f"The log of slice {number} of '{stage}' up to epoch {epoch} has {found} of its {living} units.",
                    safe="Nothing was changed.",
                    todo="Bring the files under 'entry' and 'commit' back from a copy of the store.",
                )
            try:
                read.append(self.entry(stage, number, at))
            except BadEntry:
                if rows >= living and len(newest(read)[0]) == living:
                    break  # it was not needed
                raise
            rows, at = rows + len(read[-1].units), read[-1].before
            # What is older than the oldest footprint may be gone: nobody looks there before all else was counted.
            if rows >= living and (at < oldest or not at or rows - counted >= counted // MORE):
                found, counted = len(newest(read)[0]), rows
        return read

    def entry(self, stage: str, number: int, epoch: int) -> Entry:
        try:
            return self._entry(stage, number, epoch)
        except CorruptionError as error:
            raise BadEntry(
                f"The entry of slice {number} of '{stage}' of epoch {epoch} cannot be read: {error.what}", epoch
            ) from error

    def _entry(self, stage: str, number: int, epoch: int) -> Entry:
        footprints, _ = self._of(epoch)
        at, before = footprints.entries[stage][number]
        file = self._file(epoch, at)
        told = next(
            (of for of in file.meta["stages"][stage] if any(one["number"] == number for one in of["slices"])), None
        )
        if told is None:
            raise CorruptionError(f"{file.name} has no entry of slice {number} of '{stage}'.")
        starts = np.zeros(told["batches"], np.int64)
        for one in told["slices"]:
            if one["number"] == number:
                break
            starts += one["rows"]
        said = SliceSaid(**(one | {"rows": tuple(one["rows"])}))
        batches = [
            self._batch(epoch, at, told["frame"] + table).slice(start, rows)
            for table, (start, rows) in enumerate(zip(starts.tolist(), said.rows, strict=True))
        ]
        units, kinds, rows = (column.to_numpy(zero_copy_only=False) for column in batches[0].columns)
        return Entry(epoch, before, said, units, kinds, rows, batches[1:])

    def _of(self, epoch: int) -> tuple[Footprints, tuple[bytes, ...]]:
        graph = self._ledger.graph()
        if graph is not None and graph.units and epoch == graph.epoch:
            return Footprints.above(graph), ()  # what its commit says was of the graph before
        if epoch not in self._footprints:
            commit = self._ledger.get_commit(epoch)
            if commit is None or commit.footprints is None:
                raise BadEntry(
                    f"commit/{epoch:010d} is missing, and state is to be found by it."
                    if commit is None
                    else f"commit/{epoch:010d} says nothing of units of state.",
                    epoch,
                )
            self._footprints[epoch] = commit.footprints, commit.attachments
        return self._footprints[epoch]

    def _file(self, epoch: int, number: int) -> FrameFile:
        key = epoch, number
        if key not in self._files:
            footprints, attachments = self._of(epoch)
            ref = footprints.files[number]
            if ref.inline is not None:
                file = FrameFile.of(attachments[ref.inline], f"commit/{epoch:010d} (inline entries)", _KIND)
            else:
                if not self._ledger.section.exists(ref.name):
                    raise CorruptionError(f"{ref.name} is missing.")
                file = FrameFile.at(self._ledger.section, ref.name, _KIND)
            if file.checksum != ref.checksum:
                raise CorruptionError(f"{ref.name or file.name} is not the file that was committed.")
            self._files[key] = file
        return self._files[key]

    def _batch(self, epoch: int, file: int, frame: int) -> pa.RecordBatch:
        key = epoch, file, frame
        if key not in self._batches:
            data = self._file(epoch, file).frame(frame)
            self.nbytes += len(data)
            with pa.ipc.open_stream(data) as stream:
                self._batches[key] = stream.read_next_batch()
        return self._batches[key]


class BadEntry(CorruptionError):
    """What an epoch says of units of state cannot be read; the state before it can be found without."""

    def __init__(self, what: str, epoch: int) -> None:
        super().__init__(
            what,
            safe="Nothing was changed.",
            todo="Bring the file back from a copy of the store.",
        )
        self.epoch = epoch


def newest(read: Sequence[Entry]) -> tuple[Ints, Ints]:
    """The living units of a history that is newest first, and the number of the control row of each, of all of them end
    to end."""
    if not read:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    units, first = np.unique(np.concatenate([one.units for one in read]), return_index=True)
    lives = np.concatenate([one.kinds for one in read])[first] != CLOSE
    return units[lives], first[lives]


def verify(ledger: Ledger, epoch: int) -> int:
    """Read the files of entries of an epoch back, every byte; how many there are."""
    commit = ledger.get_commit(epoch)
    if commit is None or commit.footprints is None:
        return 0
    files = [one for one in commit.footprints.files if one.inline is None]
    for one in files:
        file = FrameFile.at(ledger.section, one.name, _KIND)
        file.verify()
        if file.checksum != one.checksum:
            raise CorruptionError(f"{one.name} is not the file that was committed.")
    return len(files)


def hold(ledger: Ledger, committed: int) -> int:
    """The epoch above which the log and the entries must stay: so that one bad entry, wherever it is, leaves the state
    before it to be found, the oldest footprint as of right before the oldest one that counts now."""
    now = ledger.get_commit(committed)
    if now is None or now.footprints is None:
        return 0
    base = now.footprints.base
    if now.footprints.oldest < 2 or now.footprints.oldest - 1 <= base:
        return base  # before it there is only the checkpoint that it began with
    before = ledger.get_commit(now.footprints.oldest - 1)
    return before.footprints.oldest if before is not None and before.footprints is not None else 0
