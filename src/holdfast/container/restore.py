"""Slices on their way to being active: loaded from packs or backups, then brought forward by the log.

They stay apart from the job's active slices until they are whole, so that nobody reads or applies half a slice. Only
the lost slices' rows are read, and each stage of a slice only above its own version: what was loaded for it, wherever
the other stages are. Each epoch is read in the terms of the graph that its prepare names: what the stages' inputs were
called in the log then, and on which level they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.container import splits
from holdfast.container.backups import Loaders
from holdfast.container.footprints import Recovering, Recovery
from holdfast.container.former_graphs import FormerGraphs
from holdfast.container.slices import HeldSlice, HostedStage, Inputs, count, table_name
from holdfast.errors import CorruptionError, EpochGone, StoreError
from holdfast.invariants import Impossible, some
from holdfast.log.pack import Pack
from holdfast.log.records import Manifest, Prepare
from holdfast.operators.marked import Marked
from holdfast.operators.spec import Operator
from holdfast.state import copies
from holdfast.state.former import as_now
from holdfast.state.slice import SliceState

if TYPE_CHECKING:
    from holdfast.container.job import HostedJob


Versions = Mapping[str, Mapping[int, int]]
"""Of stages and slices."""


class Revived:
    """``fresh`` are the slices to come, stage by stage. Active ones that are only behind are brought on in place."""

    def __init__(self, job: HostedJob) -> None:
        self._job = job
        self.slices: set[int] = set()
        self._stages = dict(job.stages)
        """Of the graph that the job has now; what comes meanwhile has no rows yet, and is made where it appears."""
        graphs = job.log.ledger.graphs()
        self._splits = job.splits
        self._sources = splits.Sources(graphs, self._splits, self._stages)
        self._every = self._stages | dict(self._sources.stages)
        self._former = FormerGraphs(graphs, job.graph, self._stages, self._sources.stages)
        self.fresh: dict[str, dict[int, HeldSlice]] = {name: {} for name in self._every}
        self._recovering: dict[tuple[str, int], Recovering] = {}
        self._packs: dict[str, Pack] = {}
        self.told: tuple[str, ...] = ()
        """What could not be read."""

    # --- where they come from -----------------------------------------------------------------------------

    def load_packs(self, slices: Sequence[int], manifest: Manifest | None) -> int:
        """From a checkpoint, or from nothing; the bytes of it."""
        try:
            return self._load_packs(slices, manifest)
        except StoreError as error:
            checkpoint, graph = manifest.epoch if manifest else 0, self._job.log.ledger.graph()
            if graph is None or checkpoint != graph.epoch:
                raise
            raise CorruptionError(
                f"{error.what} It is of the checkpoint that the job's graph begins with: what was there before, at "
                f"epoch {checkpoint}, is in terms of another graph, and stands in for it only where that had the same "
                "stages.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            ) from error

    def load_units(self, slices: Sequence[int], epoch: int) -> int:
        """From the log alone: what it has of their units up to that epoch; the bytes of it. Replay brings them in."""
        sizes: list[int] = []
        recovery = Recovery(self._job.log.ledger, epoch, partial(self._packed, sizes))
        for number in slices:
            for name, stage in self._stages.items():
                if not isinstance(stage.operator, Marked):
                    raise Impossible(f"the log has no units of '{name}'")
                found = recovery.of(name, stage.operator, number)
                self._recovering[name, number] = found
                self.put(name, number, found.begin())
        self.told = tuple(recovery.told)
        return recovery.nbytes + sum(sizes)

    def _packed(self, sizes: list[int], stage: str, number: int) -> list[pa.RecordBatch]:
        """A slice's tables of a stage in the checkpoint that the graph begins with."""
        ledger = self._job.log.ledger
        graph = some(ledger.graph(), "a graph that begins with a checkpoint")
        manifest = some(graph.manifest, "units are in a checkpoint")
        name = manifest.pack_of(number)
        if name not in self._packs:
            self._packs[name] = Pack.open(self._job.store, name)
        pack = self._packs[name]
        found = []
        for at, layout in enumerate(self._stages[stage].plan.operator.tables()):
            table = table_name(stage, at)
            rows = pack.slice(table, number).combine_chunks()
            sizes.append(pack.nbytes(table, number))
            (batch,) = rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
            found.append(as_now(stage, at, layout, batch))
        return found

    def _load_packs(self, slices: Sequence[int], manifest: Manifest | None) -> int:
        checkpoint = manifest.epoch if manifest else 0
        place = {number: manifest.pack_of(number) for number in slices} if manifest else {}
        opened = {name: Pack.open(self._job.store, name) for name in set(place.values())}
        sizes = []
        unborn = self._former.unborn(manifest) if manifest is not None else frozenset()
        wanted = [*self._stages, *self._sources.needed(checkpoint)]

        def load(number: int) -> None:
            for name, stage in ((name, self._every[name]) for name in wanted):
                state = stage.operator.new_slice()
                if name in unborn:
                    state.load([], checkpoint)
                elif manifest is not None:
                    parts: list[pa.RecordBatch] = []
                    for at, (table, layout) in enumerate(zip(stage.tables, stage.operator.layouts, strict=True)):
                        pack = opened[place[number]]
                        packed = pack.slice(table, number).combine_chunks()
                        self._job.from_store.take(pack.nbytes(table, number), lambda: None)
                        found = packed.to_batches() or [pa.RecordBatch.from_pylist([], packed.schema)]
                        parts += [as_now(name, at, layout, part) for part in found]
                    state.load(parts, checkpoint)
                    sizes.append(sum(part.nbytes for part in parts))
                self.put(name, number, state)

        self._job.each(slices, load)
        return sum(sizes)

    def put(self, stage: str, number: int, state: SliceState) -> None:
        """A stage of a slice as it was loaded: replay goes on from its own epoch."""
        self.fresh[stage][number] = HeldSlice(state)
        self.slices.add(number)

    def stand_by(self, slices: Sequence[int], epoch: int) -> list[int]:
        """Those of ``slices`` whose backup is needed. Raises, before anything is changed, if one has no source."""
        backups = self._job.backups.versions(slices)
        needed, missing = [], []
        for number in slices:
            held = [stage.slices.get(number) for stage in self._stages.values()]
            at = [one.state.epoch for one in held if one is not None]
            if len(at) == len(held) and min(at) <= epoch:
                self.slices.add(number)
            elif backups.get(number, epoch + 1) <= epoch:
                needed.append(number)
            else:
                missing.append(number)
        if missing:
            raise _nothing_of(missing, epoch)
        return needed

    def load_backups(self, slices: Sequence[int]) -> int:
        """The backups, merged and indexed; the bytes of them."""
        sizes = []

        def load(number: int) -> None:
            found = self._job.backups.take(number)
            if found is None:
                raise _nothing_of([number], None)  # dropped between our look and now
            sizes.append(self._load(number, *found))

        self._job.each(slices, load)
        return sum(sizes)

    def load(self, found: Mapping[int, tuple[int, Loaders]]) -> None:
        """From tables that were put together elsewhere: their version, and the tables."""

        def load(number: int) -> None:
            self._load(number, *found[number])

        self._job.each(list(found), load)

    def _load(self, number: int, version: int, loaders: Loaders) -> int:
        for name, stage in self._stages.items():
            state = stage.operator.new_slice()
            if any(table in loaders for table in stage.tables):
                tables = zip(stage.tables, stage.operator.layouts, strict=True)
                # One that is not there is empty: a copy has what differs, and of nothing at all its first table alone.
                state.activate([loaders.get(table) or copies.Loader(layout, epoch=version) for table, layout in tables])
            else:
                state.load([], version)  # it came later
            self.put(name, number, state)
        return sum(loader.nbytes for loader in loaders.values())

    # --- the log above ------------------------------------------------------------------------------------

    def replay(self, epoch: int) -> int:
        """Bring every stage of every slice from its own version to ``epoch``; the rows that took."""
        versions = {
            name: {number: self._held(name, number).state.epoch for number in sorted(self.slices)}
            for name in self._stages
        }
        versions |= {
            name: {number: held.state.epoch for number, held in sorted(self.fresh[name].items())}
            for name in self._sources.stages
        }
        self._refuse_peers_ahead(versions, epoch)
        oldest = min((version for of in versions.values() for version in of.values()), default=epoch)
        replayed = 0
        for past in range(oldest + 1, epoch + 1):
            prepares = {1: self._job.log.prepare(past, 1)}
            then = self._former.stages_of(prepares[1])
            self._split_off(past, versions)
            for name in then.unborn:
                self._pass_over(name, past, self._behind(name, past, versions))
            for stage in then.stages:
                level = stage.plan.level
                behind = self._behind(stage.plan.name, past, versions)
                if behind:
                    if level not in prepares:
                        prepares[level] = self._job.log.prepare(past, level)
                    replayed += self._replay(stage, prepares[level], behind)
        self._split_off(epoch + 1, versions)  # so that whoever reads it then finds it
        for (name, number), found in self._recovering.items():
            found.before(self._held(name, number).state, epoch + 1)
        for name, stage in self._stages.items():  # the last epochs may have been an older function's
            for number in versions[name]:
                self._held(name, number).state.run_by(stage.operator)
        return replayed

    def _behind(self, stage: str, epoch: int, versions: Versions) -> list[int]:
        """The slices of it that have the epoch before them; a stage that is gone does not go further than it must."""
        if epoch > self._sources.through.get(stage, epoch):
            return []
        return [number for number, version in versions[stage].items() if version < epoch]

    def _split_off(self, epoch: int, versions: Versions) -> None:
        """What begins in that epoch begins with what its source holds before it."""
        for split in self._splits:
            if split.epoch == epoch and split.stage in self._every:
                mine, source = partial(self._held, split.stage), partial(self._held, split.source)
                splits.copy(split, self._behind(split.stage, epoch, versions), mine, source, self._job.each)

    def _pass_over(self, stage: str, epoch: int, slices: Sequence[int]) -> None:
        """What was not there had no rows."""
        for held in (self._held(stage, number) for number in slices):
            with held.lock:
                if held.state.epoch < epoch:
                    held.state.pass_over(epoch)
                    held.state.release(epoch - 1)

    def _refuse_peers_ahead(self, versions: Versions, epoch: int) -> None:
        """A stage that looks into another must find it at the very epoch that it applies: there is no way back."""
        for name, stage in self._stages.items():
            for peer in stage.plan.peers:
                for number, version in versions[name].items():
                    if version < epoch and versions[peer][number] > version + 1:
                        raise EpochGone(
                            f"Slice {number} of '{name}' is at epoch {version} and looks into '{peer}', which is at "
                            f"{versions[peer][number]} already: what it would find there is of a later epoch.",
                            safe="Nothing was changed.",
                            todo=f"Bring '{peer}' back from what is no newer than that.",
                        )

    def _replay(self, stage: HostedStage, prepare: Prepare, slices: Sequence[int]) -> int:
        epoch, total = prepare.fence.epoch, 0
        for group in self._job.log.groups(stage, prepare, slices):
            rows = self._job.log.inputs_of(stage, prepare, group)

            def run(number: int, rows: Mapping[int, Inputs] = rows) -> None:
                held = self._held(stage.plan.name, number)
                with ExitStack() as locks:
                    peers = {name: self._held(name, number) for name in stage.plan.peers}
                    for one in (*peers.values(), held):
                        locks.enter_context(one.lock)
                    if held.state.epoch < epoch:
                        held.state.run_by(self._operator(stage, number, held.state, epoch))
                        looked = {name: peer.state for name, peer in peers.items()}
                        stage.advance(held.state, prepare, rows.get(number), looked)
                    if number in self.fresh[stage.plan.name]:
                        held.state.release(epoch - 1)  # the last one may have to be given back

            self._job.each(group.slices, run)
            total += sum(map(count, rows.values()))
            del rows, run  # before the next group's rows come
        return total

    def _operator(self, stage: HostedStage, number: int, state: SliceState, epoch: int) -> Operator:
        """What brings a slice to that epoch. One that comes back unit by unit first gets those of the epoch before."""
        found = self._recovering.get((stage.plan.name, number))
        if found is not None:
            found.before(state, epoch)
            return found.operator if epoch <= found.through else found.marked.noting("nowhere")
        return stage.operator.noting("elsewhere") if isinstance(stage.operator, Marked) else stage.operator

    def _held(self, stage: str, number: int) -> HeldSlice:
        fresh = self.fresh[stage].get(number)
        return self._every[stage].held(number) if fresh is None else fresh

    # --- when it fails ------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Make backups again of what came from backups, at the newest epoch that all stages of a slice have reached."""
        fresh = {name: self.fresh[name] for name in self._stages}
        numbers = set.intersection(*(set(held) for held in fresh.values()))
        for number in numbers:
            states = {name: held[number].state for name, held in fresh.items()}
            version = min(state.epoch for state in states.values())
            with suppress(EpochGone):
                for state in states.values():
                    while state.epoch > version:
                        state.undo()
                self._job.keep_backup(number, version, demoted(states))


def demoted(states: Mapping[str, SliceState]) -> dict[str, copies.Loader]:
    """All tables of a slice, stage by stage, as a backup has them."""
    return {table_name(name, at): loader for name, state in states.items() for at, loader in enumerate(state.demote())}


def _nothing_of(missing: Sequence[int], epoch: int | None) -> EpochGone:
    names = ", ".join(map(str, missing))
    by = "" if epoch is None else f" of epoch {epoch} or before"
    return EpochGone(
        f"Nothing is here{by} to make slices {names} active from.",
        safe="Nothing was changed.",
        todo="Take them from another container's backups, or from the store.",
    )
