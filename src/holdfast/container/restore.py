"""Slices on their way to being active: loaded from packs or backups, then brought forward by the log.

They stay apart from the job's active slices until they are whole, so that nobody reads or applies half a slice. Only
the lost slices' rows are read, and each slice only above its own version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.container.backups import Loaders
from holdfast.container.slices import HeldSlice, HostedStage, Inputs, count, table_name
from holdfast.errors import CorruptionError, EpochGone, StoreError
from holdfast.log.pack import Pack
from holdfast.log.records import Prepare
from holdfast.plan.former import as_now
from holdfast.state import copies
from holdfast.state.slice import SliceState

if TYPE_CHECKING:
    from holdfast.container.job import HostedJob


class Revived:
    """``fresh`` are the slices to come, stage by stage. Active ones that are only behind are brought on in place."""

    def __init__(self, job: HostedJob) -> None:
        self._job = job
        self._versions: dict[int, int] = {}
        self.fresh: dict[str, dict[int, HeldSlice]] = {name: {} for name in job.stages}

    # --- where they come from -----------------------------------------------------------------------------

    def load_packs(self, slices: Sequence[int], checkpoint: int, packs: Mapping[str, Sequence[int]]) -> int:
        """From a checkpoint, or from nothing (``checkpoint`` 0); the bytes of it."""
        try:
            return self._load_packs(slices, checkpoint, packs)
        except StoreError as error:
            graph = self._job.log.ledger.graph()
            if graph is None or checkpoint != graph.epoch:
                raise
            raise CorruptionError(
                f"{error.what} It is of the checkpoint that the job's graph begins with: what was there before, at "
                f"epoch {checkpoint}, is in terms of another graph and cannot stand in for it.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            ) from error

    def _load_packs(self, slices: Sequence[int], checkpoint: int, packs: Mapping[str, Sequence[int]]) -> int:
        place = {number: name for name, numbers in packs.items() for number in numbers}
        wanted = {place[number] for number in slices} if checkpoint else ()
        opened = {name: Pack.open(self._job.store, name) for name in wanted}
        sizes = []

        def load(number: int) -> None:
            for name, stage in self._job.stages.items():
                state = stage.operator.new_slice()
                if checkpoint:
                    parts: list[pa.RecordBatch] = []
                    for at, (table, layout) in enumerate(zip(stage.tables, stage.operator.layouts, strict=True)):
                        pack = opened[place[number]]
                        packed = pack.slice(table, number).combine_chunks()
                        self._job.from_store.take(pack.nbytes(table, number), lambda: None)
                        found = packed.to_batches() or [pa.RecordBatch.from_pylist([], packed.schema)]
                        parts += [as_now(stage.plan, at, layout, part) for part in found]
                    state.load(parts, checkpoint)
                    sizes.append(sum(part.nbytes for part in parts))
                self.fresh[name][number] = HeldSlice(state)
            self._versions[number] = checkpoint

        self._job.each(slices, load)
        return sum(sizes)

    def stand_by(self, slices: Sequence[int], epoch: int) -> list[int]:
        """Those of ``slices`` whose backup is needed. Raises, before anything is changed, if one has no source."""
        backups = self._job.backups.versions(slices)
        needed, missing = [], []
        for number in slices:
            held = [stage.slices.get(number) for stage in self._job.stages.values()]
            at = [one.state.epoch for one in held if one is not None]
            if len(at) == len(held) and min(at) <= epoch:
                self._versions[number] = min(at)
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
        for name, stage in self._job.stages.items():
            state = stage.operator.new_slice()
            state.activate([loaders[table] for table in stage.tables])
            self.fresh[name][number] = HeldSlice(state)
        self._versions[number] = version
        return sum(loader.nbytes for loader in loaders.values())

    # --- the log above ------------------------------------------------------------------------------------

    def replay(self, epoch: int) -> int:
        """Bring every slice from its own version to ``epoch``; the rows that took."""
        replayed, oldest = 0, min(self._versions.values(), default=epoch)
        if oldest < epoch:
            self._refuse_former_graph(oldest)
        for past in range(oldest + 1, epoch + 1):
            behind = [number for number, version in self._versions.items() if version < past]
            for level in range(1, self._job.levels + 1):
                replayed += self._replay(self._job.log.prepare(past, level), behind)
        return replayed

    def _replay(self, prepare: Prepare, slices: Sequence[int]) -> int:
        epoch, total = prepare.fence.epoch, 0
        for stage in self._job.at_level(prepare.level):
            for group in self._job.log.groups(stage, prepare, slices):
                rows = self._job.log.inputs_of(stage, prepare, group)

                def run(number: int, stage: HostedStage = stage, rows: Mapping[int, Inputs] = rows) -> None:
                    held = self._held(stage.plan.name, number)
                    with ExitStack() as locks:
                        peers = {name: self._held(name, number) for name in stage.plan.peers}
                        for one in (*peers.values(), held):
                            locks.enter_context(one.lock)
                        if held.state.epoch < epoch:
                            looked = {name: peer.state for name, peer in peers.items()}
                            stage.advance(held.state, prepare, rows.get(number), looked)
                        if number in self.fresh[stage.plan.name]:
                            held.state.release(epoch - 1)  # the last one may have to be given back

                self._job.each(group.slices, run)
                total += sum(map(count, rows.values()))
                del rows, run  # before the next group's rows come
        return total

    def _held(self, stage: str, number: int) -> HeldSlice:
        fresh = self.fresh[stage].get(number)
        return self._job.stages[stage].held(number) if fresh is None else fresh

    def _refuse_former_graph(self, oldest: int) -> None:
        graph = self._job.log.ledger.graph()
        if graph is not None and oldest < graph.epoch:
            raise StoreError(
                f"The log from epoch {oldest + 1} on cannot be replayed: up to epoch {graph.epoch} it is in terms of "
                "the graph that the job had before it was changed.",
                safe="Nothing was changed.",
                todo=f"Bring the checkpoint of epoch {graph.epoch} back from a copy of the store: "
                f"{', '.join(graph.packs)}.",
            )

    # --- when it fails ------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Make backups again of what came from backups, at the newest epoch that all stages of a slice have reached."""
        numbers = set.intersection(*(set(held) for held in self.fresh.values()))
        for number in numbers:
            states = {name: held[number].state for name, held in self.fresh.items()}
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
