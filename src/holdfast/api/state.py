"""Reading live state: always as of one committed epoch, and always saying which."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.api.epoch_reads import as_of_one_epoch
from holdfast.api.keys import key_request
from holdfast.errors import EpochGone
from holdfast.spark.scan import Scan
from holdfast.wire.client import Unreachable
from holdfast.wire.questions import Get

if TYPE_CHECKING:
    from holdfast.api.run import Run

EPOCH_METADATA = b"holdfast.epoch"
T = TypeVar("T")


class State:
    """The state of one stage. ``epoch`` is the epoch of the last answer."""

    def __init__(self, run: Run, stage: str) -> None:
        self._run = run
        self._stage = stage
        self._plan = next(plan for plan in run._plan.stages if plan.name == stage)
        self.epoch = 0

    def to_arrow(self) -> pa.Table:
        """All rows, as a table whose schema metadata has the epoch under ``holdfast.epoch``."""
        schema = self._plan.build().state_schema

        def read(epoch: int, reader: str) -> pa.Table:
            scan = replace(self._scan(epoch), reader=reader)
            batches = [batch for part in range(len(scan.parts)) for batch in scan.part(part)]
            return pa.Table.from_batches(batches, schema).replace_schema_metadata({EPOCH_METADATA: str(epoch)})

        return self._as_of_one_epoch(read)

    def get(self, *key: Any) -> dict[str, Any] | None:
        """The row of one key, with ``_epoch``; None if there is no such key. Several key columns: several arguments.

        Values are taken as they are, never cast: one that is not of its column's type is refused.

        While the key's container is being replaced a backup answers, as of its own epoch: ``_epoch`` and ``epoch`` say
        which.
        """
        zone = self._run.job.spark.conf.get("spark.sql.session.timeZone")
        slices = self._run._file.slices
        number, request = key_request(self._stage, self._plan.operator.keys, key, zone or "UTC", slices)

        def read(epoch: int, _: str) -> tuple[int, dict[str, Any] | None]:
            owner = self._run._shell.machine.owner(number)
            try:
                if owner is None:
                    raise EpochGone(f"Slice {number} has no owner at the moment.")
                return self._ask(owner, number, request, epoch)
            except (Unreachable, EpochGone):
                for holder in self._holders(number):
                    with contextlib.suppress(Unreachable, EpochGone):
                        return self._ask(holder, number, request, None)
                raise

        epoch, row = self._as_of_one_epoch(read)
        self.epoch = epoch
        return {**row, "_epoch": epoch} if row is not None else None

    def _holders(self, number: int) -> list[str]:
        """Who has a copy of the slice, the newest first."""
        held = self._run._shell.machine.holders(number)
        return sorted(held, key=lambda holder: held[holder], reverse=True)

    def _ask(self, container: str, number: int, request: bytes, epoch: int | None) -> tuple[int, dict[str, Any] | None]:
        """One key's row as of ``epoch``, or from a backup as of whatever that has."""
        answer = self._run._fleet.call(container, Get(self._stage, number, epoch, request))
        with pa.ipc.open_stream(answer.rows) as reader:
            rows = reader.read_all().to_pylist()
        return answer.epoch, rows[0] if rows else None

    def to_df(self) -> DataFrame:
        """All rows as a Spark DataFrame with an ``_epoch`` column; each action reads one committed epoch."""
        run = self._run
        return (
            run.job.spark.read.format("holdfast")
            .option("store", run._ledger.store.uri)
            .option("stage", self._stage)
            .load()
        )

    def _scan(self, epoch: int) -> Scan:
        return self._run._jobs.scan(self._stage, epoch, "read")

    def _as_of_one_epoch(self, read: Callable[[int, str], T]) -> T:
        self.epoch, found = as_of_one_epoch(self._run, f"'{self._stage}'", read)
        return found
