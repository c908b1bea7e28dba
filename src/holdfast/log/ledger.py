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
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

from holdfast.errors import CorruptionError, FencedError, StoreError
from holdfast.log.block_files import BlockFiles, numbered_blocks
from holdfast.log.blocks import Block
from holdfast.log.differences import differences
from holdfast.log.graphs import Graphs
from holdfast.log.marks import Marks
from holdfast.log.numbered import Numbered, read_record
from holdfast.log.records import (
    SPARK,
    Commit,
    GraphFile,
    JobFile,
    Manifest,
    Owner,
    Prepare,
    Routing,
)
from holdfast.log.store import Store

FORKING = "fork"
"""Of which snapshot a store was begun to be made, before anything else of it was there."""
_PREPARE = re.compile(r"(\d{10,})\.(\d+)")


class Ledger(Marks, BlockFiles):
    """What the store knows of a job (and of one section of it). One thread at a time."""

    def __init__(self, store: Store, section: str = "") -> None:
        self.store = store
        self.section_name = section
        self.section = store.sub(section) if section else store
        self._owners = Numbered(store, Owner.file_of, Owner.from_bytes)
        self._graphs = Numbered(store, GraphFile.file_of, GraphFile.from_bytes)
        self._graph: tuple[GraphFile | None] | None = None  # once somebody has looked
        self._history: Graphs | None = None
        self._routings = Numbered(store, Routing.file_of, Routing.from_bytes)
        self._commits = Numbered(self.section, Commit.file_of, Commit.from_bytes)
        self._blocks = numbered_blocks(self.section)
        self._manifests = Numbered(self.section, Manifest.file_of, Manifest.from_bytes)
        self._last_prepared: tuple[int, int] | None = None
        self._names: dict[tuple[int, int], dict[str, str]] = {}  # from one version of the graph to another

    # The job and who runs it

    def open_or_create_job(self, job: JobFile) -> JobFile:
        """The store's own job file: ``job`` if the store is new. Refuses a store that another job has written; and
        one of another graph, unless both say their stages: then it can be compared whether the one can become the
        other, which is not decided here."""
        if self.store.exists(FORKING) and not self.store.exists(job.file):
            raise StoreError(
                f"A fork of {self.store.read(FORKING).decode()} into {self.store.uri} was cut off: what is there is no "
                "job's yet.",
                safe="Nothing was changed.",
                todo="Start it with that fork= once more, which does the rest; or use another store.",
            )
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

        Looked up once, or ``again``: whoever runs a job knows when it has another.
        """
        if self._graph is None or again:
            self._graph = (self._counting(),)
        return self._graph[0]

    def _counting(self) -> GraphFile | None:
        """The newest, but for those made while the job ran that neither a prepare nor a block came to name."""
        found = self._graphs.newest()
        if found is not None and found.live:
            last = self.last_prepared()
            prepare = read_record(self.section, Prepare.file_of(*last), Prepare.from_bytes) if last else None
            block = self.last_block()
            named = max(prepare.graph if prepare is not None else 0, block.graph if block is not None else 0)
            while found is not None and found.live and found.version > named:
                found = self._graphs.get(found.follows)
        return found

    def graph_of(self, version: int) -> GraphFile:
        """The graph of that version, which a prepare names."""
        found = self._graphs.get(version)
        if found is None:
            raise CorruptionError(
                f"{self.store.uri}/{GraphFile.file_of(version)} is missing, and the log is in its terms.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        return found

    def go_on_by(self, graph: GraphFile) -> None:
        """The job has that graph now: somebody has named it."""
        self._graph = (graph,)

    def graph_versions(self) -> list[int]:
        """Those that have a file."""
        return self._graphs.numbers()

    def next_graph(self) -> int:
        """The number of the next one: those that never counted keep theirs."""
        newest = self._graphs.newest()
        return newest.version + 1 if newest is not None else 1

    def graphs(self) -> Graphs:
        """All that the job has had, up to the one it has, as far as their files are there."""
        newest = self.graph()
        if self._history is None or self._history.newest != (newest.version if newest else 0):
            known = {one.version: one for one in self._history.later} if self._history else {}
            # Of those that have gone from the store nothing is kept here either.
            versions = [one for one in self._graphs.numbers() if newest is not None and one < newest.version]
            later = [known.get(version) or self._graphs.get(version) for version in versions] + [newest]
            first = self._history.first if self._history else None
            self._history = Graphs(first or self.find_job(), tuple(one for one in later if one is not None))
            self._names = {}
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
        prepare = replace(prepare, graph=self.version)
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
        prepare = read_record(self.section, file, Prepare.from_bytes)
        if prepare is not None:
            self._remember(prepare)
            if self._is_hub and (left := self.left_out(epoch)) is not None:
                prepare = replace(prepare, left_out=left.stages)
            if names := self._names_since(prepare.graph):
                prepare = prepare.renamed(names)
        return prepare

    def _names_since(self, version: int) -> dict[str, str]:
        """What is called otherwise now than in that version of the graph."""
        now = self.version
        if version >= now:
            return {}
        if (version, now) not in self._names:
            names: dict[str, str] = {}
            for step in [one.renamed for one in self.graphs().later if version < one.version <= now]:
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
        graph, version = self.graph(), self.version
        if prepare.graph > version or (graph is not None and graph.live and prepare.graph != version):
            raise FencedError(
                f"{self.section.uri}/{prepare.file} is in terms of version {prepare.graph} of the job's graph, and "
                f"this driver has version {version}: another driver was at work while the job was changed.",
                safe="That epoch is prepared, and is what it is; nothing else was changed.",
                todo="Start again, one driver only: it goes on with the graph that the prepare names.",
            )
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

    @property
    def _is_hub(self) -> bool:
        """Whether it has jobs of which one may be left out."""
        graph = self.graph()
        return bool(graph.names) if graph is not None else self._hub_file

    @cached_property
    def _hub_file(self) -> bool:
        job = self.find_job()
        return job is not None and bool(job.names)

    @property
    def version(self) -> int:
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

    def carriers(self) -> Iterator[Block | Prepare]:
        """What carries Spark's own files of batches, from the newest batch on: blocks, and what was before these."""
        for number in reversed(self.block_numbers()):
            if (block := self.get_block(number)) is not None:
                yield block
        yield from (prepare for prepare in self.newest_first() if prepare.batch is not None)

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
