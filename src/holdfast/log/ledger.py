"""The ledger: one job's view of its small files.

Everything that decides something is a put-if-absent: whoever loses reads the winner's file and goes on with
that. The ledger lists a folder when it first needs it; from then on it remembers the newest number and only
looks whether the next one has come (by another driver), so an epoch costs no listing.

Job-wide files (``job.json``, ``graph/``, ``owner/``, ``routing/``) are in the store itself, those of a section in its
folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from holdfast.errors import CorruptionError, FencedError, StoreError
from holdfast.log.differences import differences
from holdfast.log.graphs import Graphs
from holdfast.log.records import (
    SPARK,
    Commit,
    Fence,
    GraphFile,
    JobFile,
    Manifest,
    Mark,
    Owner,
    Prepare,
    Routing,
    Taken,
)
from holdfast.log.store import Store

_PREPARE = re.compile(r"(\d{10,})\.(\d+)")


class _Record(Protocol):
    @property
    def file(self) -> str: ...
    def to_bytes(self) -> bytes: ...


R = TypeVar("R", bound=_Record)


class _Numbered(Generic[R]):
    """A folder of files numbered without gaps, of which the newest counts."""

    def __init__(self, store: Store, file_of: Callable[[int], str], read: Callable[[bytes, str], R]) -> None:
        self._store = store
        self._file_of = file_of
        self._read = read
        self._folder, _, first = file_of(0).partition("/")
        self._suffix = first.lstrip("0")
        self._newest: tuple[int, R] | None = None

    def numbers(self) -> list[int]:
        found = (name.removesuffix(self._suffix) for name in self._store.list(self._folder))
        return sorted(int(name) for name in found if name.isdecimal())

    def get(self, number: int) -> R | None:
        file = self._file_of(number)
        return _read(self._store, file, self._read)

    def put(self, number: int, record: R) -> tuple[R, bool]:
        """The record that has the number from now on, and whether it is ours."""
        won = self._store.put_if_absent(record.file, record.to_bytes())
        found = record if won else self.get(number)
        if found is None:
            raise StoreError(f"{record.file} was there and is gone: somebody is deleting files of {self._store.uri}")
        if self._newest is None or number >= self._newest[0]:
            self._newest = (number, found)
        return found, won

    def newest(self) -> R | None:
        if self._newest is None:
            numbers = self.numbers()
            record = self.get(numbers[-1]) if numbers else None
            if record is None:
                return None
            self._newest = (numbers[-1], record)
        while (later := self.get(self._newest[0] + 1)) is not None:
            self._newest = (self._newest[0] + 1, later)
        return self._newest[1]


class Ledger:
    """What the store knows of a job (and of one section of it). One thread at a time."""

    def __init__(self, store: Store, section: str = "") -> None:
        self.store = store
        self.section_name = section
        self.section = store.sub(section) if section else store
        self._owners = _Numbered(store, Owner.file_of, Owner.from_bytes)
        self._graphs = _Numbered(store, GraphFile.file_of, GraphFile.from_bytes)
        self._graph: tuple[GraphFile | None] | None = None  # once somebody has looked
        self._history: Graphs | None = None
        self._routings = _Numbered(store, Routing.file_of, Routing.from_bytes)
        self._commits = _Numbered(self.section, Commit.file_of, Commit.from_bytes)
        self._manifests = _Numbered(self.section, Manifest.file_of, Manifest.from_bytes)
        self._last_prepared: tuple[int, int] | None = None
        self._names: dict[tuple[int, int], dict[str, str]] = {}  # from one version of the graph to another

    # The job and who runs it

    def open_or_create_job(self, job: JobFile) -> JobFile:
        """The store's own job file: ``job`` if the store is new. Refuses a store that another job has written; and
        one of another graph, unless both say their stages: then it can be compared whether the one can become the
        other, which is not decided here."""
        if self.store.put_if_absent(job.file, job.to_bytes()):
            return job
        mine = JobFile.from_bytes(job.to_bytes(), job.file)  # as JSON has it: no tuples
        found = JobFile.from_bytes(self.store.read(job.file), f"{self.store.uri}/{job.file}")
        if found.name != mine.name:
            raise StoreError(
                f"The store {self.store.uri} belongs to job {found.name!r}, not to {mine.name!r}",
                safe="Nothing was changed.",
                todo="Give every job a store of its own, or use the name that it had.",
            )
        differs = differences("slices", found.slices, mine.slices)
        if not (found.stages and mine.stages):
            differs += differences("graph", found.graph, mine.graph)
        if differs:
            raise StoreError(
                f"Job {mine.name!r} is not what it was when the store {self.store.uri} was made:\n"
                + "\n".join(f"    {line}" for line in differs),
                safe="Nothing was changed.",
                todo="Start the job as it was, or with a new store.",
            )
        return found

    def find_job(self) -> JobFile | None:
        """The store's job file, if it has one."""
        raw = self.store.read_if_present(JobFile.file)
        return JobFile.from_bytes(raw, f"{self.store.uri}/{JobFile.file}") if raw is not None else None

    def graph(self, *, again: bool = False) -> GraphFile | None:
        """The graph that the job was changed to last; None while it has the one of its job file.

        Looked up once, or ``again``: whoever runs a job runs one graph, and is replaced before there is another.
        """
        if self._graph is None or again:
            self._graph = (self._graphs.newest(),)
        return self._graph[0]

    def graphs(self) -> Graphs:
        """All that the job has had, up to the one it has."""
        newest = self.graph()
        if self._history is None or self._history.newest != (newest.version if newest else 0):
            later = [self._graphs.get(version) for version in range(1, newest.version + 1)] if newest else []
            self._history = Graphs(self.find_job(), tuple(one for one in later if one is not None))
        return self._history

    @property
    def spark(self) -> str:
        """The folder of Spark's own checkpoint, in the section."""
        graph = self.graph()
        return graph.spark if graph is not None else SPARK

    def put_graph(self, graph: GraphFile) -> None:
        """From here on the job has that graph."""
        _, won = self._graphs.put(graph.version, graph)
        if not won:
            raise FencedError(
                f"Somebody else has changed the graph of the job in {self.store.uri} just now.",
                safe="Its change is whole; nothing of ours was kept.",
                todo="Start again: the job is compared with the graph that the store has now.",
            )
        self._graph = (graph,)

    def take_ownership(self, host: str, pid: int, address: str) -> Owner:
        """The next incarnation, ours. Whoever had the job until now finds out when it looks."""
        started = time.time_ns() // 1_000_000
        while True:
            last = self._owners.newest()
            owner = Owner(last.incarnation + 1 if last else 1, host, pid, address, started)
            _, won = self._owners.put(owner.incarnation, owner)
            if won:
                return owner

    def newest_owner(self) -> Owner | None:
        return self._owners.newest()

    def put_routing(self, routing: Routing) -> Routing:
        return self._routings.put(routing.version, routing)[0]

    def last_routing(self) -> Routing | None:
        return self._routings.newest()

    # Epochs

    def put_prepare(self, prepare: Prepare) -> Prepare:
        """What the level of the epoch is from now on: ``prepare`` if we were first, else the winner's."""
        epoch, level = prepare.fence.epoch, prepare.level
        prepare = replace(prepare, graph=self._version)
        if not self.section.put_if_absent(prepare.file, prepare.to_bytes()):
            winner = self.get_prepare(epoch, level)
            if winner is None:
                raise StoreError(
                    f"{prepare.file} was there and is gone: somebody is deleting files of {self.store.uri}"
                )
            self.refuse_former_graph(winner)
            return winner
        self._remember(prepare)
        return prepare

    def get_prepare(self, epoch: int, level: int) -> Prepare | None:
        file = Prepare.file_of(epoch, level)
        prepare = _read(self.section, file, Prepare.from_bytes)
        if prepare is not None:
            self._remember(prepare)
            if names := self._names_since(prepare.graph):
                prepare = prepare.renamed(names)
        return prepare

    def _names_since(self, version: int) -> dict[str, str]:
        """What is called otherwise now than in that version of the graph."""
        now = self._version
        if version >= now:
            return {}
        if (version, now) not in self._names:
            names: dict[str, str] = {}
            for later in range(version + 1, now + 1):
                graph = self._graphs.get(later)
                step = graph.renamed if graph is not None else {}
                names = {old: step.get(new, new) for old, new in names.items()} | {
                    old: new for old, new in step.items() if old not in names
                }
            self._names[version, now] = names
        return self._names[version, now]

    def refuse_former_graph(self, prepare: Prepare) -> None:
        """A prepare above the epoch where the graph was changed must be of the graph that it was changed to.

        It is not if two drivers were at work: one that did not know yet that it was replaced, and its successor. The
        levels that the graph mends were there before it, and are the same in terms of both.
        """
        graph = self.graph()
        if graph is None or (prepare.fence.epoch == graph.epoch + 1 and prepare.level <= graph.mends):
            return
        if prepare.fence.epoch > graph.epoch and prepare.graph < graph.version:
            raise StoreError(
                f"{self.section.uri}/{prepare.file} is in terms of version {prepare.graph} of the job's graph, but "
                f"{graph.file} says that it has version {graph.version} since epoch {graph.epoch}: two drivers with "
                "unlike jobs were at work at the same time.",
                safe="Nothing was changed.",
                todo="See that no driver of this job runs. If that epoch is committed, delete the graph's file; if it "
                "is not, delete the prepare, which nobody has applied.",
            )

    def mark_failed(self, fence: Fence, text: str) -> None:
        """Applying the epoch raised and was taken back: it may become what other functions make of it."""
        mark = Mark(fence, "failed", self._version, text)
        self.section.put_if_absent(mark.file, mark.to_bytes())

    def mark_applied(self, fence: Fence) -> None:
        """Before the sinks of an epoch: from here on it is what these functions made of it."""
        mark = Mark(fence, "applied", self._version)
        self.section.put_if_absent(mark.file, mark.to_bytes())

    def failed(self, epoch: int) -> Mark | None:
        """The mark of an epoch that raised with the graph there is, unless its sinks may have begun nevertheless."""
        mark = _read(self.section, Mark.file_of(epoch, "failed", self._version), Mark.from_bytes)
        prepare = self.get_prepare(epoch, 1) if mark is not None else None
        # A graph that only has other names for its stages finishes what the functions of the one before have begun.
        versions = range(prepare.graph if prepare is not None else self._version, self._version + 1)
        if any(self.section.exists(Mark.file_of(epoch, "applied", version)) for version in versions):
            return None
        return mark

    def put_taken(self, taken: Taken) -> None:
        """The sink has the epoch, also for whoever finishes it after us."""
        self.section.put_if_absent(taken.file, taken.to_bytes())

    def taken(self, epoch: int, sinks: Iterable[str]) -> frozenset[str]:
        """Those of the sinks that are known to have the epoch."""
        return frozenset(sink for sink in sinks if _read(self.section, Taken.file_of(epoch, sink), Taken.from_bytes))

    @property
    def _version(self) -> int:
        graph = self.graph()
        return graph.version if graph is not None else 0

    def last_prepared(self) -> tuple[int, int] | None:
        """The newest (epoch, level) that is prepared."""
        if self._last_prepared is None:
            known = self._prepared()
            if not known:
                return None
            self._last_prepared = known[-1]
        epoch, level = self._last_prepared
        while True:
            if self.section.exists(Prepare.file_of(epoch, level + 1)):
                level += 1
            elif self.section.exists(Prepare.file_of(epoch + 1, 1)):
                epoch, level = epoch + 1, 1
            else:
                self._last_prepared = (epoch, level)
                return self._last_prepared

    def prepares(self, from_epoch: int, to_epoch: int | None = None) -> list[Prepare]:
        """The prepares of these epochs (both ends included), in order of epoch and level. Replay depends on
        all of them: a missing one is an error, except above the last when ``to_epoch`` is None."""
        known = [key for key in self._prepared() if from_epoch <= key[0]]
        if to_epoch is not None:
            known = [key for key in known if key[0] <= to_epoch]
        last = to_epoch if to_epoch is not None else (known[-1][0] if known else from_epoch - 1)
        needed = {(epoch, 1) for epoch in range(from_epoch, last + 1)}
        needed |= {(epoch, below) for epoch, level in known for below in range(1, level)}
        found = {key: prepare for key in known if (prepare := self.get_prepare(*key))}
        missing = sorted(needed - set(found))
        if missing:
            raise CorruptionError(
                f"{self.section.uri}/{Prepare.file_of(*missing[0])} is missing; "
                f"epochs {from_epoch} to {last} are needed",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        return list(found.values())

    def newest_first(self) -> Iterator[Prepare]:
        """The prepares of the first level of every epoch that still has one, from the newest on."""
        for epoch, level in reversed(self._prepared()):
            if level == 1 and (prepare := self.get_prepare(epoch, level)) is not None:
                yield prepare

    def put_commit(self, commit: Commit) -> Commit:
        return self._commits.put(commit.fence.epoch, commit)[0]

    def get_commit(self, epoch: int) -> Commit | None:
        return self._commits.get(epoch)

    def last_committed(self) -> Commit | None:
        return self._commits.newest()

    def leave_story(self, incarnation: int, text: str) -> str:
        """What led to a bug of ours, for people: beside the log, in a file that nothing reads or removes. Its place."""
        file = f"impossible/{incarnation:010d}.txt"
        self.section.write(file, [text.encode()])
        return f"{self.section.uri}/{file}"

    # Checkpoints

    def put_manifest(self, manifest: Manifest) -> Manifest:
        return self._manifests.put(manifest.epoch, manifest)[0]

    def manifests(self, on_corrupt: Callable[[CorruptionError], None] | None = None) -> list[Manifest]:
        """The complete checkpoints of the job's graph, oldest first. A manifest that cannot be read is an error, or is
        told to ``on_corrupt`` and left out: the one before it and the log still make the whole state."""
        graph = self.graph()
        began = graph.manifest if graph else None
        # The graph's file stays when its checkpoint is cut away.
        found = [began] if began and all(map(self.section.exists, began.packs)) else []
        for number in self._manifests.numbers():
            if graph is not None and number <= graph.epoch:
                continue  # in terms of the graph before
            try:
                manifest = self._manifests.get(number)
            except CorruptionError as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)
            else:
                found += [manifest] if manifest else []
        return found

    def manifest(self, epoch: int) -> Manifest:
        """The complete checkpoint of that epoch, in terms of the job's graph."""
        graph = self.graph()
        found = graph.manifest if graph is not None and graph.epoch == epoch else self._manifests.get(epoch)
        if found is None:
            raise CorruptionError(
                f"{self.section.uri}/{Manifest.file_of(epoch)} is missing.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        return found

    # Within

    def _remember(self, prepare: Prepare) -> None:
        if self._last_prepared is not None:
            self._last_prepared = max(self._last_prepared, (prepare.fence.epoch, prepare.level))

    def _prepared(self) -> list[tuple[int, int]]:
        matches = (_PREPARE.fullmatch(name) for name in self.section.list("prepare"))
        return sorted((int(match[1]), int(match[2])) for match in matches if match)


def _read(store: Store, file: str, parse: Callable[[bytes, str], R]) -> R | None:
    data = store.read_if_present(file)
    if data is None:
        return None
    record = parse(data, f"{store.uri}/{file}")
    if record.file != file:
        raise CorruptionError(f"{store.uri}/{file} holds what was written as {record.file}")
    return record
