"""The state of a job as its graph of before had it: packs as they are, or a checkpoint with the log above applied."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import pyarrow as pa

from holdfast.container.job import HostedJob
from holdfast.container.slices import table_name
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.errors import HoldfastError, StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.pack import Pack
from holdfast.log.records import JobFile, Manifest
from holdfast.operators.stage import StagePlan
from holdfast.safety.policies import Eventual
from holdfast.state.former import as_now

LOG = logging.getLogger("holdfast")
_INFLATED = 4  # what packs and segments take in memory, against what they take in the store

Copies = dict[tuple[str, int], pa.RecordBatch]
"""Full copies by table and slice."""


class Packed:
    """A checkpoint of the very epoch: its packs, as they are."""

    def __init__(self, ledger: Ledger, manifest: Manifest, plans: Sequence[StagePlan]) -> None:
        self._manifest = manifest
        self._tables = {
            table_name(plan.name, at): (plan.name, at, layout)
            for plan in plans
            for at, layout in enumerate(plan.operator.tables())
        }
        self._packs = {name: Pack.open(ledger.section, name) for name in manifest.packs}
        self.nbytes = _INFLATED * sum(ledger.section.size(name) for name in manifest.packs)

    def copies(self, slices: Sequence[int], tables: Sequence[str]) -> Copies:
        found: Copies = {}
        for number in slices:
            pack = self._packs[self._manifest.pack_of(number)]
            for table in tables:
                copy = _one_batch(pack.slice(table, number))
                found[table, number] = as_now(*self._tables[table], copy)
        return found


class Replayed:
    """A checkpoint, or the units that the log has, or nothing; and the log above it, applied by the stages as they
    were."""

    def __init__(
        self,
        ledger: Ledger,
        file: JobFile,
        plans: Sequence[StagePlan],
        manifest: Manifest | None,
        epoch: int,
        *,
        units: bool = False,
    ) -> None:
        self._manifest, self._epoch = manifest, epoch
        checkpoint = manifest.epoch if manifest else 0
        own = Ledger(ledger.store, ledger.section_name)
        if units:
            commit = own.get_commit(epoch)
            checkpoint = commit.footprints.oldest if commit is not None and commit.footprints is not None else epoch
        logged = sum(ref.nbytes for one in own.prepares(checkpoint + 1, epoch) for ref in one.segments)
        packed = sum(own.section.size(name) for name in manifest.packs) if manifest else 0
        self.nbytes = _INFLATED * (packed + logged)
        LOG.info("the graph changes: %d epochs of the old one are replayed", epoch - checkpoint)
        self._job: HostedJob | None = None
        if plans:
            _refuse_unloadable(plans)
            self._threads = ThreadTable(os.cpu_count() or 1)
            checks = Eventual().terms().checks if units else None
            self._job = HostedJob(file.job_id, plans, file.slices, own, self._threads, Staging(0), checks=checks)

    def copies(self, slices: Sequence[int], tables: Sequence[str]) -> Copies:
        if self._job is None:
            return {}
        self._job.restore(slices, self._epoch, self._manifest.epoch if self._manifest else 0)
        found = {(str(table), number): copy for table, number, _, copy in self._job.reading.packed(self._epoch, slices)}
        self._job.forget(slices)
        return found

    def close(self) -> None:
        if self._job is not None:
            self._job.close()
            self._threads.close()


def _refuse_unloadable(plans: Sequence[StagePlan]) -> None:
    for plan in plans:
        try:
            plan.build()
        except HoldfastError as error:
            why = error.__cause__
            if why is None:
                raise
            raise StoreError(  # unpickling runs whatever code the function needs
                f"The function of stage '{plan.name}' as it was cannot be loaded any more: "
                f"{type(why).__name__}: {why}. It is needed once more, to finish what the log has for it.",
                safe="Nothing was changed.",
                todo="Keep the old function's module where it was until the job has started with the new one.",
            ) from error


def _one_batch(packed: pa.Table) -> pa.RecordBatch:
    """A table's parts as one; a table without rows has none."""
    whole = packed.combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], packed.schema)
